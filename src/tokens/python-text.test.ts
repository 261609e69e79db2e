import { Template } from '@huggingface/jinja'
import { expect, test } from 'vitest'
import { PYTHON_TEXT_GLOBALS, printLikePython } from './python-text.ts'

function rendered(source: string, values: Readonly<Record<string, unknown>>): string {
  const template = new Template(source)
  printLikePython(template)
  return template.render({ ...values, ...PYTHON_TEXT_GLOBALS })
}

// The expectations are what Python with jinja2 3.1.6 prints for the same template and values.
test.each([
  [true, 'True'],
  [false, 'False'],
  [null, 'None'],
  [undefined, ''],
  [3, '3'],
  [0.5, '0.5'],
  ['text', 'text'],
  [['string', 'null'], "['string', 'null']"],
  [[1, true, null, "it's"], '[1, True, None, "it\'s"]'],
  [{ a: { b: false }, c: 'x"y\'z' }, "{'a': {'b': False}, 'c': 'x\"y\\'z'}"],
  [['a\nb\\'], "['a\\nb\\\\']"],
])('a value that becomes text is printed as Python does: %j', (value, text) => {
  expect(rendered('{{ value | string }}', { value })).toBe(text)
  expect(rendered("{{ '<' ~ value ~ '>' }}", { value })).toBe(`<${text}>`)
})

test('places inside loops, macros, conditions and assignments are found too', () => {
  const source =
    "{% macro show(v) %}{{ '(' ~ v ~ ')' }}{% endmacro %}" +
    '{% for v in values %}{% set t = v | string if v is not string else v %}{{ t }}{{ show(v) }}{% endfor %}' +
    "{% if (flag | string) == 'True' %}!{% endif %}"
  expect(rendered(source, { values: [true, null, 'x'], flag: true })).toBe('True(True)None(None)x(x)!')
})

test('a long chain of concatenations is evaluated once', () => {
  const chain = Array.from({ length: 200 }, () => 'flag').join(' ~ ')
  expect(rendered(`{{ ${chain} }}`, { flag: true })).toBe('True'.repeat(200))
})
