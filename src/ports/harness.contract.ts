/** @file What every harness promises: it is run in a real sandbox against a small model server. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { executionId } from '../core/ids.ts'
import type { Harness } from './harness.ts'
import type { ProcessEnd, Sandbox, SandboxInstance } from './sandbox.ts'
import type { Task } from './task.ts'

const INSTRUCTION = '- write "made" into result.txt\nand keep $HOME and `quotes` as they are'
const API_KEY = 'key-of-this-execution'
const never = new AbortController().signal

interface SeenRequest {
  readonly path: string
  readonly authorization: string
  readonly body: { readonly model: string; readonly messages: readonly Message[] }
}
interface Message {
  readonly role: string
  readonly content: unknown
}

/**
 * A chat completions server that asks for one bash command and then says it is done; it fails every request with 400
 * when told to fail, and never answers when told to hang.
 */
class StubModel {
  behavior: 'work' | 'fail' | 'hang' = 'work'
  command = 'true'
  readonly seen: SeenRequest[] = []
  readonly #server: Server

  constructor() {
    this.#server = createServer((request, response) => void this.#answer(request, response))
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
    const address = this.#server.address()
    if (address === null || typeof address === 'string') throw new Error('no port')
    return `http://127.0.0.1:${address.port}`
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString('utf8')) as SeenRequest['body']
    this.seen.push({ path: request.url ?? '', authorization: request.headers.authorization ?? '', body })
    if (this.behavior === 'hang') return
    if (this.behavior === 'fail') {
      response.writeHead(400, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ error: { message: 'refused by the contract', type: 'invalid_request_error' } }))
      return
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const worked = body.messages.some((m) => m.role === 'tool')
    for (const event of worked ? finalAnswer() : toolCall(this.command)) {
      response.write(
        `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', ...event })}\n\n`,
      )
    }
    response.end('data: [DONE]\n\n')
  }
}

const choice = (delta: object, finish: string | null = null): object => ({
  choices: [{ index: 0, delta, finish_reason: finish }],
})
const usage = { choices: [], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } }

function toolCall(command: string): readonly object[] {
  const call = {
    index: 0,
    id: 'call_1',
    type: 'function',
    function: { name: 'bash', arguments: JSON.stringify({ command }) },
  }
  return [choice({ role: 'assistant', content: '' }), choice({ tool_calls: [call] }), choice({}, 'tool_calls'), usage]
}

function finalAnswer(): readonly object[] {
  return [choice({ role: 'assistant', content: 'all ' }), choice({ content: 'done' }), choice({}, 'stop'), usage]
}

export function harnessContract(
  name: string,
  makeHarness: () => Harness,
  makeSandbox: (baseFolder: string) => Sandbox,
  extent: 'all' | 'essentials' = 'all',
): void {
  describe(`harness ${name}`, () => {
    let folder = ''
    let gatewayUrl = ''
    let sandbox: Sandbox
    let harness: Harness
    let instance: SandboxInstance | undefined
    const model = new StubModel()

    beforeAll(async () => {
      folder = mkdtempSync(join(tmpdir(), 'gyre-harness-'))
      sandbox = makeSandbox(join(folder, 'base'))
      gatewayUrl = await model.listen()
      harness = makeHarness()
      const progress: string[] = []
      await harness.prepare((message) => progress.push(message))
      await harness.prepare((message) => progress.push(message))
      expect(progress.every((message) => message.includes(harness.name))).toBe(true)
    }, 600_000)
    afterEach(async () => instance?.destroy())
    afterAll(async () => {
      await model.close()
      rmSync(folder, { recursive: true, force: true })
    })

    async function launch(options: {
      command?: string
      behavior?: StubModel['behavior']
      timeoutMs?: number
    }): Promise<ProcessEnd> {
      model.behavior = options.behavior ?? 'work'
      model.command = options.command ?? 'true'
      model.seen.length = 0
      const taskFolder = mkdtempSync(join(folder, 'task-'))
      mkdirSync(join(taskFolder, 'environment'))
      writeFileSync(join(taskFolder, 'environment', 'input.txt'), 'input\n')
      const task: Task = {
        name: 'sample',
        folder: taskFolder,
        instruction: INSTRUCTION,
        agentTimeoutMs: 60_000,
        verifierTimeoutMs: 60_000,
      }
      instance = await sandbox.create({
        executionId: executionId('launched'),
        task,
        executionFolder: taskFolder,
        limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
        gatewayUrl,
        readOnlyFolders: harness.readOnlyFolders,
      })
      const endpoint = {
        baseUrl: `${instance.gatewayUrl}/x/launched`,
        apiKey: API_KEY,
        model: 'policy',
        contextWindow: 32_000,
        maxOutputTokens: 1000,
      }
      return harness.launch(
        {
          sandbox: instance,
          instruction: INSTRUCTION,
          endpoint,
          timeoutMs: options.timeoutMs ?? 60_000,
          logFolder: join(folder, 'logs'),
        },
        never,
      )
    }

    test('takes the instruction as it is and works in the workspace through the endpoint, with its key and model', async () => {
      const end = await launch({ command: 'cat input.txt > result.txt; echo made >> result.txt' })
      expect(end).toMatchObject({ exitCode: 0, timedOut: false })
      expect(readFileSync(join(instance?.hostWorkspace ?? '', 'result.txt'), 'utf8')).toBe('input\nmade\n')
      expect(model.seen).toHaveLength(2)
      for (const request of model.seen) {
        expect(request.path).toBe('/x/launched/v1/chat/completions')
        expect(request.authorization).toBe(`Bearer ${API_KEY}`)
        expect(request.body.model).toBe('policy')
        const content = request.body.messages.find((m) => m.role === 'user')?.content
        expect(JSON.stringify(content)).toContain(JSON.stringify(INSTRUCTION).slice(1, -1))
      }
    })

    test('reports a failed model call as data, with what the harness said of it', async () => {
      const end = await launch({ behavior: 'fail' })
      expect(end.exitCode).toBeGreaterThan(0)
      expect(end.timedOut).toBe(false)
      expect(end.detail).toContain('refused by the contract')
    })

    if (extent === 'essentials') return

    test('takes no secret of ours into the sandbox but its own key, which is in no file', async () => {
      process.env['GYRE_CONTRACT_SECRET'] = 'secret-of-ours'
      await launch({ command: 'env > environment.txt; grep -rl key-of-this-execution "$HOME" . > files.txt' })
      delete process.env['GYRE_CONTRACT_SECRET']
      const workspace = instance?.hostWorkspace ?? ''
      const environment = readFileSync(join(workspace, 'environment.txt'), 'utf8')
      expect(environment).not.toContain('secret-of-ours')
      expect(readFileSync(join(workspace, 'files.txt'), 'utf8').trim().split('\n')).toEqual(['./environment.txt'])
    })

    test('reports a timeout as data', async () => {
      const end = await launch({ behavior: 'hang', timeoutMs: 2500 })
      expect(end).toMatchObject({ timedOut: true, exitCode: expect.not.toBeOneOf([0]) })
    })
  })
}
