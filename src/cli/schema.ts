import type { Command } from 'commander'
import { configJsonSchema } from '../config/json-schema.ts'
import type { CliContext } from './context.ts'

/** `gyre schema` */
export function registerSchema(program: Command, context: CliContext): void {
  program
    .command('schema')
    .description('Print the JSON Schema of a run file, for editors.')
    .action(() => context.print(JSON.stringify(configJsonSchema(), null, 2)))
}
