/** @file docs/config.md, from the same schema that reads run files. Pure. */
import type { JsonSchema } from './json-schema.ts'

const HEAD = `# The run file

A run file is YAML. Every field has a default but \`tasks\`; an unknown key or a wrong type is an error that names the
line. On the command line \`key=value\` overrides follow the file, dotted, the value in YAML; the last one wins:

    gyre train examples/quickstart.yaml training.steps=20 elastic.policy=colocate 'harness.args=[--verbose]'

\`gyre train RUN.yaml --dry-run\` prints the resolved config with the numbers that follow from it. Editors check and
complete run files that begin with \`# yaml-language-server: $schema=../schema/config.schema.json\`.

Durations are text with a unit (\`90s\`, \`15m\`, \`2h30m\`), sizes too (\`512MiB\`, \`2GB\`). A relative path in the file counts
from the file, in an override from the working directory. A secret is never written down: give \`env:NAME\`.

This page is generated from \`src/config/schema.ts\` by \`npm run docs\`.
`

export function configMarkdown(schema: JsonSchema): string {
  const entries = Object.entries(schema.properties ?? {})
  const plain = entries.filter(([, field]) => field.properties === undefined)
  const sections = entries.filter(([, field]) => field.properties !== undefined)
  return [HEAD, table('', plain), ...sections.flatMap(([key, section]) => sectionText(key, section))].join('\n')
}

function sectionText(path: string, section: JsonSchema): readonly string[] {
  const entries = Object.entries(section.properties ?? {})
  const plain = entries.filter(([, field]) => field.properties === undefined)
  const inner = entries.filter(([, field]) => field.properties !== undefined)
  return [
    `## ${path}\n\n${section.description ?? ''}\n`,
    ...(plain.length > 0 ? [table(`${path}.`, plain)] : []),
    ...inner.flatMap(([key, field]) => sectionText(`${path}.${key}`, field)),
    ...entries.flatMap(([key, { items }]) =>
      items?.properties === undefined ? [] : sectionText(`${path}.${key}[]`, items),
    ),
  ]
}

function table(prefix: string, fields: readonly (readonly [string, JsonSchema])[]): string {
  const rows = fields.map(([key, field]) => {
    const meaning = (field.description ?? '').replaceAll('|', String.raw`\|`)
    return `| \`${prefix}${key}\` | ${kindOf(field)} | ${defaultOf(field)} | ${meaning} |`
  })
  return `| field | type | default | meaning |\n|---|---|---|---|\n${rows.join('\n')}\n`
}

function kindOf(field: JsonSchema): string {
  if (field.enum !== undefined) return field.enum.map((value) => `\`${String(value)}\``).join(', ')
  if (field.type === 'array') return field.items?.properties === undefined ? 'list of text' : 'list of sections'
  if (field.type === 'object') return 'map of text'
  if (field.type === 'string') return 'text'
  if (field.type === 'boolean') return '`true`, `false`'
  const { minimum, maximum } = field
  const range = maximum === undefined || maximum >= 2 ** 31 - 1 ? `>= ${minimum ?? 0}` : `${minimum ?? 0} to ${maximum}`
  return `${field.type === 'integer' ? 'whole number' : 'number'} ${range}`
}

function defaultOf(field: JsonSchema): string {
  if (field.default === undefined) return '-'
  return typeof field.default === 'string' ? `\`${field.default}\`` : `\`${JSON.stringify(field.default)}\``
}
