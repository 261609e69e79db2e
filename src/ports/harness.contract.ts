/** @file What every harness promises: it is run in a real sandbox against a small model server of any dialect. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { executionId } from '../core/ids.ts'
import type { Json } from '../core/items.ts'
import type { AnswerPart, Dialect, ParsedRequest } from '../wire/dialect.ts'
import { parseRequest } from '../wire/request.ts'
import { wireRoute } from '../wire/routes.ts'
import type { Harness } from './harness.ts'
import type { ProcessEnd, Sandbox, SandboxInstance } from './sandbox.ts'
import type { Task } from './task.ts'

const INSTRUCTION = '- write "made" into result.txt\nand keep $HOME and `quotes` as they are'
const API_KEY = 'key-of-this-execution'
const never = new AbortController().signal

/** The tool of a harness that runs a command: the arguments that make it do so. */
export interface CommandTool {
  readonly name: string
  readonly argumentsFor: (command: string) => Json
}

export const BASH_TOOL: CommandTool = { name: 'bash', argumentsFor: (command) => ({ command }) }

interface SeenRequest {
  readonly path: string
  readonly key: string
  readonly request: ParsedRequest
}

/**
 * A model server that asks for one command and then says it is done; it fails every request with 400 when told to
 * fail, and never answers when told to hang.
 */
class StubModel {
  behavior: 'work' | 'fail' | 'hang' = 'work'
  command = 'true'
  readonly seen: SeenRequest[] = []
  readonly #tool: CommandTool
  readonly #server: Server

  constructor(tool: CommandTool) {
    this.#tool = tool
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

  async #answer(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const [path = '', query = ''] = (message.url ?? '').split('?', 2)
    const chunks: Buffer[] = []
    for await (const chunk of message) chunks.push(chunk as Buffer)
    const route = wireRoute(path.replace(/^\/x\/[^/]+/, ''), message.headers, query)
    if (route?.verb !== 'generate') {
      response.writeHead(404).end()
      return
    }
    const { dialect, target } = route
    const request = parseRequest(dialect, JSON.parse(Buffer.concat(chunks).toString('utf8')), target)
    this.seen.push({ path, key: keyOf(message), request })
    if (this.behavior === 'hang') return
    if (this.behavior === 'fail') {
      const fault = { kind: 'malformed', code: 'E_WIRE_MALFORMED', message: 'refused by the contract' } as const
      response.writeHead(400, { 'content-type': 'application/json' })
      response.end(JSON.stringify(dialect.faultBody(fault)))
      return
    }
    const worked = request.tools.length === 0 || request.items.some((item) => item.kind === 'tool-result')
    sendAnswer(response, dialect, request, worked ? FINAL_ANSWER : [this.#call()])
  }

  #call(): AnswerPart {
    const argumentsText = JSON.stringify(this.#tool.argumentsFor(this.command))
    return { kind: 'tool-call', call: { id: 'call_1', name: this.#tool.name, argumentsText } }
  }
}

function keyOf({ headers }: IncomingMessage): string {
  const given = headers['x-api-key'] ?? headers['x-goog-api-key'] ?? headers.authorization ?? ''
  return String(given).replace(/^Bearer /, '')
}

const FINAL_ANSWER: readonly AnswerPart[] = [
  { kind: 'text', text: 'all ' },
  { kind: 'text', text: 'done' },
]

function sendAnswer(
  response: ServerResponse,
  dialect: Dialect,
  { model, stream, tools }: ParsedRequest,
  parts: readonly AnswerPart[],
): void {
  const head = { answerId: 'a', model, createdS: 1, promptTokens: 10, includeUsage: true, tools }
  const usage = { promptTokens: 10, cachedTokens: 0, completionTokens: 5 }
  const finish = parts.some((part) => part.kind === 'tool-call') ? 'tool-calls' : 'stop'
  if (!stream) {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify(dialect.answerBody(head, parts, finish, usage)))
    return
  }
  const frames = dialect.answerStream(head)
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.end(frames.open() + parts.map((part) => frames.part(part)).join('') + frames.close(finish, usage))
}

export function harnessContract(
  name: string,
  makeHarness: () => Harness,
  makeSandbox: (baseFolder: string) => Sandbox,
  extent: 'all' | 'essentials' = 'all',
  tool: CommandTool = BASH_TOOL,
): void {
  describe(`harness ${name}`, () => {
    let folder = ''
    let gatewayUrl = ''
    let sandbox: Sandbox
    let harness: Harness
    let instance: SandboxInstance | undefined
    const model = new StubModel(tool)

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
      // Some harnesses ask for a title on the side, without tools.
      expect(model.seen.filter(({ request }) => request.tools.length > 0)).toHaveLength(2)
      for (const { path, key, request } of model.seen) {
        expect(path).toMatch(/^\/x\/launched\/v1/)
        expect(key).toBe(API_KEY)
        expect(request.model).toBe('policy')
      }
      const said = model.seen.at(-1)?.request.items.flatMap((item) => (item.kind === 'user' ? [item.text] : []))
      expect(said?.join('\n')).toContain(INSTRUCTION)
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
      // Cut in two, because a harness may keep what it was asked to run.
      await launch({ command: `env > environment.txt; grep -rl key-of-"this"-execution "$HOME" . > files.txt` })
      delete process.env['GYRE_CONTRACT_SECRET']
      const workspace = instance?.hostWorkspace ?? ''
      const environment = readFileSync(join(workspace, 'environment.txt'), 'utf8')
      expect(environment).not.toContain('secret-of-ours')
      const files = readFileSync(join(workspace, 'files.txt'), 'utf8').split('\n')
      expect(files.filter((file) => file !== '' && !/^(\.\/)?environment\.txt$/.test(file))).toEqual([])
    })

    test('reports a timeout as data', async () => {
      const end = await launch({ behavior: 'hang', timeoutMs: 2500 })
      expect(end).toMatchObject({ timedOut: true, exitCode: expect.not.toBeOneOf([0]) })
    })
  })
}
