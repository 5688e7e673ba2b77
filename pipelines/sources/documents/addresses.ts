/**
 * Where a vendor may send us: its redirects, and the links in its answers, lead to public addresses alone. Only a base address that is
 * itself on a loopback, private or link-local address, as a mirror in the house is, may lead to others of that kind.
 */
import { type LookupAddress, type LookupOptions, lookup as resolve } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';

export type AddressKind = 'public' | 'loopback' | 'private' | 'link-local' | 'reserved';

/** Blocks of IPv4, the first that holds an address. https://www.iana.org/assignments/iana-ipv4-special-registry */
const IPV4: readonly (readonly [block: string, bits: number, kind: AddressKind])[] = [
  ['127.0.0.0', 8, 'loopback'],
  // Linux connects it to itself.
  ['0.0.0.0', 8, 'loopback'],
  ['169.254.0.0', 16, 'link-local'],
  ['10.0.0.0', 8, 'private'],
  ['172.16.0.0', 12, 'private'],
  ['192.168.0.0', 16, 'private'],
  ['100.64.0.0', 10, 'private'],
  ['192.0.0.0', 24, 'reserved'],
  ['192.0.2.0', 24, 'reserved'],
  ['198.18.0.0', 15, 'reserved'],
  ['198.51.100.0', 24, 'reserved'],
  ['203.0.113.0', 24, 'reserved'],
  ['224.0.0.0', 3, 'reserved'],
];

/** The same of IPv6, by the first groups. `embeds`: the group with which an IPv4 address begins that decides. */
const IPV6: readonly {
  readonly groups: readonly number[];
  readonly bits: number;
  readonly kind?: AddressKind;
  readonly embeds?: number;
}[] = [
  { groups: [0, 0, 0, 0, 0, 0, 0, 1], bits: 128, kind: 'loopback' },
  { groups: [0, 0, 0, 0, 0, 0, 0, 0], bits: 128, kind: 'loopback' },
  // Mapped, translated (SIIT) and compatible addresses, NAT64 and 6to4.
  { groups: [0, 0, 0, 0, 0, 0xffff], bits: 96, embeds: 6 },
  { groups: [0, 0, 0, 0, 0xffff, 0], bits: 96, embeds: 6 },
  { groups: [0, 0, 0, 0, 0, 0], bits: 96, embeds: 6 },
  { groups: [0x64, 0xff9b, 0, 0, 0, 0], bits: 96, embeds: 6 },
  { groups: [0x2002], bits: 16, embeds: 1 },
  { groups: [0x64, 0xff9b, 1], bits: 48, kind: 'private' },
  { groups: [0xfc00], bits: 7, kind: 'private' },
  // Site-local, which some networks still have.
  { groups: [0xfec0], bits: 10, kind: 'private' },
  { groups: [0xfe80], bits: 10, kind: 'link-local' },
  { groups: [0x2001, 0xdb8], bits: 32, kind: 'reserved' },
  // Teredo embeds an address in a form of its own.
  { groups: [0x2001, 0], bits: 32, kind: 'reserved' },
  { groups: [0xff00], bits: 8, kind: 'reserved' },
];

/** The kind of an address, IPv4 or IPv6. A text that is none is `reserved`. */
export function kindOfAddress(address: string): AddressKind {
  const bare = address.replace(/^\[(.*)\]$/, '$1').replace(/%.*$/, '');
  if (isIP(bare) === 4) return kindOfIPv4(numberOf(bare));
  if (isIP(bare) !== 6) return 'reserved';
  const groups = groupsOf(bare);
  const found = IPV6.find((block) => begins(groups, block.groups, block.bits));
  if (found?.embeds !== undefined) return kindOfIPv4(groups[found.embeds] * 0x10000 + groups[found.embeds + 1]);
  return found?.kind ?? 'public';
}

const numberOf = (ipv4: string): number => ipv4.split('.').reduce((sum, part) => sum * 256 + Number(part), 0);

function kindOfIPv4(number: number): AddressKind {
  const found = IPV4.find(
    ([block, bits]) => Math.floor(number / 2 ** (32 - bits)) === Math.floor(numberOf(block) / 2 ** (32 - bits)),
  );
  return found?.[2] ?? 'public';
}

function groupsOf(ipv6: string): number[] {
  // The parser of addresses writes an embedded IPv4 address as groups.
  const [head, tail] = new URL(`http://[${ipv6}]`).hostname.slice(1, -1).split('::');
  const parts = (text: string | undefined) => (text ? text.split(':').map((group) => Number.parseInt(group, 16)) : []);
  const [first, last] = [parts(head), parts(tail)];
  return [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
}

const begins = (groups: readonly number[], block: readonly number[], bits: number): boolean =>
  block.every((group, at) => {
    const shift = 16 - Math.min(16, Math.max(0, bits - at * 16));
    return groups[at] >> shift === group >> shift;
  });

/** A vendor led to an address at which its base is not. */
export class AddressRefused extends Error {
  constructor(host: string, address: string, kind: AddressKind) {
    const where = host === address ? host : `${host}, which is ${address}`;
    super(
      `leads to ${where}, a ${kind} address: it is not followed, because the base address is not on a ${kind} address itself`,
    );
  }
}

/** @param base the address of the connection to the base; undefined if it is not known, which allows public addresses alone */
const isAllowed = (kind: AddressKind, base: string | undefined): boolean =>
  kind === 'public' || (base !== undefined && kind === kindOfAddress(base));

/** Refuses a host that is written as an address, in whatever spelling: the parser of URLs has made it the usual one. @throws AddressRefused */
export function checkHost({ hostname }: URL, base: string | undefined): void {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  if (isIP(bare) === 0) return;
  const kind = kindOfAddress(bare);
  if (!isAllowed(kind, base)) throw new AddressRefused(hostname, hostname, kind);
}

/** Refuses an address that a host was found to have. @throws AddressRefused */
export function checkAddress(host: string, address: string, base: string | undefined): void {
  const kind = kindOfAddress(address);
  if (!isAllowed(kind, base)) throw new AddressRefused(host, address, kind);
}

type Lookup = (
  host: string,
  options: LookupOptions,
  done: (error: Error | null, found: string | LookupAddress[], family?: number) => void,
) => void;

/** Resolves a name for a connection, which then goes to an address that was looked at. */
export function checkedLookup(base: string | undefined, lookup: Lookup = resolve as Lookup): LookupFunction {
  return (host, options, done) => {
    lookup(host, options, (error, found, family) => {
      if (error) return void done(error, '', 0);
      for (const address of typeof found === 'string' ? [found] : found.map((one) => one.address)) {
        const kind = kindOfAddress(address);
        if (!isAllowed(kind, base)) return void done(new AddressRefused(host, address, kind), '', 0);
      }
      done(null, found, family);
    });
  };
}
