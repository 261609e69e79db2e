import { InvalidArgumentError } from 'commander'
import type { Command } from 'commander'
import type { CliContext } from './context.ts'
import type { GatewayOptions } from './gateway.ts'

/** `gyre gateway` */
export function registerGateway(program: Command, context: CliContext): void {
  program
    .command('gateway')
    .description('Serve harnesses from an engine and record every token they are given, without training.')
    .requiredOption('--engine <kind>', 'sglang, vllm, tinker, or scripted:SCENARIO.yaml')
    .requiredOption('--out <folder>', 'gets the store; the same folder goes on where it ended')
    .option('--url <url>', 'base URL of the engine, without /v1')
    .option('--tokenizer <folder>', "the model's tokenizer and chat template; bytes for a scripted engine")
    .option('--host <address>', 'where harnesses reach the gateway', '127.0.0.1')
    .option('--port <n>', 'for harnesses; by default that of last time, else any free one', wholeNumber)
    .option('--admin-port <n>', 'for administration, on loopback; by default as above', wholeNumber)
    .option('--token-file <file>', 'holds the token of administration; made when it is missing (OUT/admin.token)')
    .option('--profile <name>', 'harness profile, by name or as a file', 'generic')
    .option('--model <name>', 'name under which harnesses ask for the policy', 'gyre-policy')
    .option('--engine-model <name>', 'model of the engine, where it serves several; for tinker always')
    .option('--engine-key-env <variable>', "variable that holds the engine's key")
    .option('--accept-processed-logprobs', 'serve from an engine whose log-probs follow temperature or truncation')
    .option('--context <tokens>', 'bound for the context, where the engine says none or more', wholeNumber)
    .option('--temperature <t>', 'of every call, whatever a harness asks for', temperature, '1')
    .option('--json', 'print one line of JSON instead of the instructions')
    .addHelpText(
      'after',
      `
At start one execution is open and its base URL and key are printed, ready to paste for each harness. Further ones come
from the administration: POST /executions {id, profile, sampling}, GET /executions, DELETE /executions/ID.
Each execution should be one session of one harness.

Examples:
  $ gyre gateway --engine sglang --url http://127.0.0.1:30000 --tokenizer MODEL --out traces
  $ gyre gateway --engine scripted:test/golden/scenarios/pi-task.yaml --profile pi --out try
  $ gyre tree default --run traces`,
    )
    .action(async (options: GatewayOptions) => {
      const { serveGateway } = await import('./gateway.ts')
      await serveGateway(options, context)
    })
}

function wholeNumber(text: string): string {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError('Give a whole number.')
  return text
}

function temperature(text: string): string {
  if (!(Number(text) >= 0) || text.trim() === '') throw new InvalidArgumentError('Give a number of 0 or more.')
  return text
}
