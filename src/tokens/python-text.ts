/**
 * @file Makes a template print values as Python prints them.
 *
 * Chat templates are written for Python: `flag | string` and `'' ~ flag` give `True` there, and the JavaScript
 * interpreter gives `true`. Models were trained on the former, so the places where a value becomes text are led
 * through a function of ours.
 */
import type { Template } from '@huggingface/jinja'

/** Name under which a rewritten template finds the function. No template has a variable of this name. */
const FUNCTION_NAME = '__python_text'

interface Node {
  readonly type: string
  [key: string]: unknown
}

/** A value of the interpreter: nested values are wrapped, the outermost is not. */
type Wrapped = { readonly value: Plain }

/** Rewrites the parsed template in place. Render it with `PYTHON_TEXT_GLOBALS`. */
export function printLikePython(template: Template): void {
  rewriteChildren(template.parsed)
}

export const PYTHON_TEXT_GLOBALS: Readonly<Record<string, unknown>> = { [FUNCTION_NAME]: pythonText }

function rewrite(node: Node): Node {
  rewriteChildren(node)
  if (node.type === 'FilterExpression' && isIdentifier(node['filter'], 'string')) return asText(node['operand']) as Node
  if (isConcatenation(node)) {
    node['left'] = asText(node['left'])
    node['right'] = asText(node['right'])
  }
  return node
}

function isConcatenation(node: Node): boolean {
  const operator = node['operator'] as { readonly value?: unknown } | undefined
  return node.type === 'BinaryExpression' && operator?.value === '~'
}

function rewriteChildren(node: Node): void {
  for (const [key, value] of Object.entries(node)) {
    if (isNode(value)) node[key] = rewrite(value)
    else if (Array.isArray(value)) node[key] = value.map((item: unknown) => (isNode(item) ? rewrite(item) : item))
  }
}

/**
 * Outermost, the interpreter hands over none and undefined alike, so none is told apart in the template. That evaluates
 * the operand twice, so what is text already stays as it is: a chain of concatenations would double at every link.
 */
function asText(operand: unknown): unknown {
  if (isNode(operand) && (operand.type === 'StringLiteral' || isConcatenation(operand))) return operand
  const args = [operand]
  const isNone = { type: 'TestExpression', operand, negate: false, test: { type: 'Identifier', value: 'none' } }
  return {
    type: 'Ternary',
    condition: isNone,
    trueExpr: { type: 'StringLiteral', value: 'None' },
    falseExpr: { type: 'CallExpression', callee: { type: 'Identifier', value: FUNCTION_NAME }, args },
  }
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string'
}

function isIdentifier(value: unknown, name: string): boolean {
  return isNode(value) && value.type === 'Identifier' && value['value'] === name
}

type Plain = null | undefined | boolean | number | string | readonly Wrapped[] | ReadonlyMap<string, Wrapped>

function pythonText(value: Plain): string {
  if (typeof value === 'string') return value
  return value === undefined ? '' : pythonRepr(value)
}

function pythonRepr(value: Plain): string {
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (value === null || value === undefined) return 'None'
  if (typeof value === 'string') return quoted(value)
  if (typeof value === 'number') return String(value)
  if ('length' in value) return `[${value.map((inner) => pythonRepr(inner.value)).join(', ')}]`
  const members = [...value].map(([key, inner]) => `${quoted(key)}: ${pythonRepr(inner.value)}`)
  return `{${members.join(', ')}}`
}

const ESCAPES: readonly (readonly [string, string])[] = [
  ['\\', '\\\\'],
  ['\n', '\\n'],
  ['\r', '\\r'],
  ['\t', '\\t'],
]

/** Single quotes, unless the text has some and no double ones. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'"
  const escaped = ESCAPES.reduce((sum, [char, escape]) => sum.replaceAll(char, escape), text)
  return quote + escaped.replaceAll(quote, `\\${quote}`) + quote
}
