/** Zips built by hand, field by field, so that any of them can lie. Knows nothing of the project's own zip code. */
import { crc32, deflateRawSync } from 'node:zlib';

export interface MemberSpec {
  readonly name: string;
  readonly content: Buffer;
  /** Compression method written in both headers; 0 stores, anything else deflates. Default 8. */
  readonly method?: number;
  readonly flags?: number;
  /** What the headers claim instead of the truth. */
  readonly claim?: { readonly unpackedBytes?: number; readonly packedBytes?: number; readonly crc?: number };
  /** Name in the local header, where it differs from the directory's. */
  readonly localName?: string;
  /** Replaces the packed data. */
  readonly packed?: Buffer;
}

export interface ZipSpec {
  readonly members: readonly MemberSpec[];
  /** Sizes and places in zip64 fields, as archives over 4 GiB have them. */
  readonly zip64?: boolean;
}

/** Of contents that many zips of a test hold. */
const deflated = new WeakMap<Buffer, Buffer>();

function deflate(content: Buffer): Buffer {
  const packed = deflated.get(content) ?? deflateRawSync(content);
  deflated.set(content, packed);
  return packed;
}

export function buildZip({ members, zip64 = false }: ZipSpec): Buffer {
  const locals: Buffer[] = [];
  const centrals: Buffer[] = [];
  let at = 0;
  for (const member of members) {
    const method = member.method ?? 8;
    const packed = member.packed ?? (method === 0 ? member.content : deflate(member.content));
    const claim = {
      unpackedBytes: member.content.length,
      packedBytes: packed.length,
      crc: crc32(member.content),
      ...member.claim,
    };
    const common = (nameBytes: number, extraBytes: number) =>
      join(
        u16(zip64 ? 45 : 20, member.flags ?? 0, method, 0, 0x5821),
        u32(claim.crc, zip64 ? 0xffffffff : claim.packedBytes, zip64 ? 0xffffffff : claim.unpackedBytes),
        u16(nameBytes, extraBytes),
      );
    const localName = Buffer.from(member.localName ?? member.name);
    const name = Buffer.from(member.name);
    const localExtra = zip64 ? join(u16(1, 16), u64(claim.unpackedBytes, claim.packedBytes)) : Buffer.alloc(0);
    const centralExtra = zip64 ? join(u16(1, 24), u64(claim.unpackedBytes, claim.packedBytes, at)) : Buffer.alloc(0);
    const local = join(u32(0x04034b50), common(localName.length, localExtra.length), localName, localExtra, packed);
    centrals.push(
      join(
        u32(0x02014b50),
        u16(45),
        common(name.length, centralExtra.length),
        u16(0, 0, 0),
        u32(0, zip64 ? 0xffffffff : at),
        name,
        centralExtra,
      ),
    );
    locals.push(local);
    at += local.length;
  }
  const directory = join(...centrals);
  const count = members.length;
  const end64 = join(
    join(u32(0x06064b50), u64(44), u16(45, 45), u32(0, 0), u64(count, count, directory.length, at)),
    join(u32(0x07064b50, 0), u64(at + directory.length), u32(1)),
  );
  const end = zip64
    ? join(u32(0x06054b50), u16(0, 0, 0xffff, 0xffff), u32(0xffffffff, 0xffffffff), u16(0))
    : join(u32(0x06054b50), u16(0, 0, count, count), u32(directory.length, at), u16(0));
  return join(...locals, directory, ...(zip64 ? [end64] : []), end);
}

const join = (...parts: Buffer[]) => Buffer.concat(parts);
const u16 = (...values: number[]) => join(...values.map((value) => Buffer.from([value & 255, value >> 8])));
const u32 = (...values: number[]) =>
  join(
    ...values.map((value) => {
      const bytes = Buffer.alloc(4);
      bytes.writeUInt32LE(value);
      return bytes;
    }),
  );
const u64 = (...values: number[]) =>
  join(
    ...values.map((value) => {
      const bytes = Buffer.alloc(8);
      bytes.writeBigUInt64LE(BigInt(value));
      return bytes;
    }),
  );
