/** @file Finds the exact text of a member of a JSON object, so that arguments reach the harness as they were sampled. */

const BLANK = /\s*/y

/**
 * Text of the value of a top-level member, white space around it left out; the last one wins when a key repeats.
 * @param text A JSON object that JSON.parse accepts.
 */
export function memberText(text: string, key: string): string | undefined {
  let found: string | undefined
  let at = skipBlank(text, text.indexOf('{') + 1)
  while (text[at] === '"') {
    const keyEnd = valueEnd(text, at)
    const isWanted = JSON.parse(text.slice(at, keyEnd)) === key
    const start = skipBlank(text, skipBlank(text, keyEnd) + 1)
    const end = valueEnd(text, start)
    if (isWanted) found = text.slice(start, end)
    at = skipBlank(text, end)
    if (text[at] === ',') at = skipBlank(text, at + 1)
  }
  return found
}

function skipBlank(text: string, at: number): number {
  BLANK.lastIndex = at
  BLANK.exec(text)
  return BLANK.lastIndex
}

const SCALAR = /[^\s,}\]]+/y

function scalarEnd(text: string, start: number): number {
  SCALAR.lastIndex = start
  return SCALAR.test(text) ? SCALAR.lastIndex : text.length
}

function stringEnd(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    if (text[at] === '\\') at++
    else if (text[at] === '"') return at + 1
  }
  return text.length
}

function valueEnd(text: string, start: number): number {
  if (text[start] === '"') return stringEnd(text, start)
  if (text[start] !== '{' && text[start] !== '[') return scalarEnd(text, start)
  let depth = 0
  for (let at = start; at < text.length; at++) {
    const char = text[at]
    if (char === '"') at = stringEnd(text, at) - 1
    else if (char === '{' || char === '[') depth++
    else if ((char === '}' || char === ']') && --depth === 0) return at + 1
  }
  return text.length
}
