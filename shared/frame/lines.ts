/** Bodies of encoding `lines`: each event's payload_raw, then one LF; the offset is the line's first cell. */
const LF = 10;

/** The payload whose first cell is `offset`; a scan of one frame, a millisecond. */
export function findLine(raw: Buffer, offset: string): Buffer | undefined {
  const needle = Buffer.from(`${offset},`, 'latin1');
  for (let start = 0; start < raw.length; ) {
    const end = raw.indexOf(LF, start);
    if (end < 0) return undefined;
    if (raw.compare(needle, 0, needle.length, start, Math.min(start + needle.length, end)) === 0) {
      return raw.subarray(start, end);
    }
    start = end + 1;
  }
  return undefined;
}
