/** Source of a pattern (for the `u` flag) that matches any of the texts, the longest first. */
export function alternation(texts: readonly string[]): string {
  return [...texts]
    .sort((a, b) => b.length - a.length)
    .map((text) => text.replaceAll(/[$()*+.?[\\\]^{|}]/g, String.raw`\$&`))
    .join('|')
}
