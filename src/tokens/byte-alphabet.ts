/**
 * @file The printable alphabet in which byte-level tokenizers write the 256 bytes.
 *
 * Bytes that are printable in Latin-1 stand for themselves; the other 68 take the
 * code points from U+0100 on, in byte order. The map is part of the tokenizer.json format.
 */

function isPrintable(byte: number): boolean {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff)
}

function buildAlphabet(): string[] {
  let next = 0x100
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++))
}

/** [256] character that stands for each byte. */
export const BYTE_CHARS: readonly string[] = buildAlphabet()

const BYTE_OF_CHAR: ReadonlyMap<string, number> = new Map(BYTE_CHARS.map((char, byte) => [char, byte]))

/** UTF-8 text as a token of the vocabulary spells it. */
export function tokenOfText(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => BYTE_CHARS[byte]).join('')
}

/** The bytes a token of the vocabulary stands for; undefined when it has a character outside the alphabet. */
export function bytesOfToken(token: string): Uint8Array | undefined {
  const bytes = new Uint8Array(token.length)
  for (let i = 0; i < token.length; i++) {
    const byte = BYTE_OF_CHAR.get(token.charAt(i))
    if (byte === undefined) return undefined
    bytes[i] = byte
  }
  return bytes
}
