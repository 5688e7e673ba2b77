/** Which representation a client gets, by its Accept header. */
import type { IncomingMessage } from 'node:http';
import { Problem } from '../contract/problems.ts';
import { REPRESENTATIONS, type Representation } from '../rendering/representations.ts';

interface Range {
  readonly type: string;
  readonly subtype: string;
  readonly quality: number;
}

/** @throws Problem NOT_ACCEPTABLE */
export function chooseRepresentation(request: IncomingMessage): Representation {
  const header = request.headers.accept;
  if (header === undefined || header.trim() === '') return REPRESENTATIONS[0];
  const ranges = header.split(',').map(parseRange);
  let best: { representation: Representation; quality: number } | undefined;
  for (const representation of REPRESENTATIONS) {
    const quality = qualityOf(representation.mediaType, ranges);
    if (quality > (best?.quality ?? 0)) best = { representation, quality };
  }
  if (best) return best.representation;
  const known = REPRESENTATIONS.map((representation) => representation.mediaType).join(', ');
  throw new Problem('NOT_ACCEPTABLE', `Rows are served as ${known}.`);
}

function parseRange(text: string): Range {
  const [name, ...parameters] = text.split(';').map((part) => part.trim());
  const [type = '', subtype = ''] = name.toLowerCase().split('/');
  const q = parameters.find((parameter) => /^q=/i.test(parameter))?.slice(2);
  const quality = q === undefined ? 1 : Number(q);
  return { type, subtype, quality: quality >= 0 && quality <= 1 ? quality : 0 };
}

/** The most specific range that fits decides. */
function qualityOf(mediaType: string, ranges: readonly Range[]): number {
  const [type, subtype] = mediaType.split('/');
  const fits = ranges
    .filter(
      (range) => (range.type === type || range.type === '*') && (range.subtype === subtype || range.subtype === '*'),
    )
    .map((range) => ({ range, specific: (range.type === '*' ? 0 : 1) + (range.subtype === '*' ? 0 : 1) }))
    .sort((a, b) => b.specific - a.specific);
  return fits[0]?.range.quality ?? 0;
}
