/** Tables of the pages. */

/** As the formatter leaves it: columns padded to their widest cell, a section apart from its marks. */
export function table(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [header, ...rows].map((cells) => cells.map((text) => text.replaceAll('|', '\\|')));
  const widths = header.map((_, column) => Math.max(3, ...all.map((cells) => cells[column].length)));
  const line = (cells: readonly string[]) =>
    `| ${cells.map((text, column) => text.padEnd(widths[column])).join(' | ')} |`;
  const [head, ...body] = all.map(line);
  return `${[head, line(widths.map((width) => '-'.repeat(width))), ...body].join('\n')}\n`;
}
