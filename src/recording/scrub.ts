/** @file Keeps the folders of the machine that recorded out of a recording. */

/**
 * Every folder becomes another of the same length, so that no text changes its length.
 * Harnesses also write a folder with dashes for its slashes.
 */
export function scrubber(folders: readonly string[]): (text: string) => string {
  const pairs = [...new Set(folders)]
    .filter((folder) => folder.length > 1)
    .toSorted((a, b) => b.length - a.length)
    .flatMap((folder, i) => {
      const stand = standIn(folder.length, i)
      return [[folder, stand] as const, [dashes(folder), dashes(stand)] as const]
    })
  return (text) => pairs.reduce((changed, [folder, stand]) => changed.replaceAll(folder, stand), text)
}

function dashes(path: string): string {
  return path.replace(/[^a-zA-Z0-9]/g, '-')
}

function standIn(length: number, index: number): string {
  return `/${String.fromCharCode(97 + (index % 26))}${'x'.repeat(length)}`.slice(0, length)
}
