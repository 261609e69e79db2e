/** @file JSON that was cut off, completed as lenient parsers complete it. */

/** Closes what a cut left open: the string, then every object and list. Undefined when brackets do not pair up. */
export function completedJson(text: string): string | undefined {
  const closers: string[] = []
  let isInString = false
  let isEscaped = false
  for (const char of text) {
    if (isEscaped) isEscaped = false
    else if (isInString && char === '\\') isEscaped = true
    else if (char === '"') isInString = !isInString
    else if (isInString) continue
    else if (char === '{') closers.push('}')
    else if (char === '[') closers.push(']')
    else if ((char === '}' || char === ']') && closers.pop() !== char) return undefined
  }
  if (isEscaped) return undefined
  return text.trimEnd().replace(/,$/, '') + (isInString ? '"' : '') + closers.toReversed().join('')
}
