/**
 * @file An inference server that computes nothing: every stream gets the same answer, one token an event.
 *
 * `/generate` speaks SGLang's native protocol, for the gateway. `/v1/chat/completions` speaks the OpenAI dialect, for
 * proxies that only pass on. Like a server with continuous batching, each step gives every stream its next token.
 */
import { createServer } from 'node:http'
import type { ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface EngineSetup {
  readonly tokenIds: readonly number[]
  readonly texts: readonly string[]
  readonly stopId: number
  /** 0 gives all tokens at once. [ms] */
  readonly stepMs: number
}

let setup: EngineSetup = { tokenIds: [], texts: [], stopId: 0, stepMs: 10 }
let timer: NodeJS.Timeout | undefined
/** Frames that each open stream still gets, the next one last. */
const streams = new Map<ServerResponse, string[]>()

function generateFrames(): string[] {
  const ids = [...setup.tokenIds, setup.stopId]
  return ids.map((id, i) => {
    const isLast = i === ids.length - 1
    const meta = {
      id: 'gyre-bench',
      finish_reason: isLast ? { type: 'stop', matched: id } : null,
      prompt_tokens: 1000,
      weight_version: '1',
      completion_tokens: i + 1,
      cached_tokens: 0,
      output_token_logprobs: [[-0.25, id, null]],
    }
    return `data: ${JSON.stringify({ text: '', output_ids: [id], meta_info: meta })}\n\n${isLast ? 'data: [DONE]\n\n' : ''}`
  })
}

function chatChunk(delta: object, finish: string | null): string {
  const choices = [{ index: 0, delta, finish_reason: finish }]
  const chunk = { id: 'chatcmpl-bench', object: 'chat.completion.chunk', created: 1, model: 'policy', choices }
  return `data: ${JSON.stringify(chunk)}\n\n`
}

function chatFrames(): string[] {
  return [...setup.texts.map((content) => chatChunk({ content }, null)), `${chatChunk({}, 'stop')}data: [DONE]\n\n`]
}

function step(): void {
  for (const [response, frames] of streams) {
    const next = setup.stepMs === 0 ? frames.splice(0).toReversed().join('') : frames.pop()
    if (next !== undefined) response.write(next)
    if (frames.length > 0) continue
    response.end()
    streams.delete(response)
  }
}

const server = createServer({ keepAliveTimeout: 600_000, requestTimeout: 0 }, (request, response) => {
  request.resume()
  request.once('end', () => {
    response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
    const frames = request.url === '/generate' ? generateFrames() : chatFrames()
    streams.set(response, frames.toReversed())
    response.once('close', () => streams.delete(response))
    if (setup.stepMs === 0) step()
  })
})
server.listen(0, '127.0.0.1')

process.on('message', (question: EngineSetup) => {
  setup = question
  clearInterval(timer)
  if (setup.stepMs > 0) timer = setInterval(step, setup.stepMs)
  process.send?.({ port: (server.address() as AddressInfo).port })
})
// A bench that was killed leaves nobody behind.
process.once('disconnect', () => process.exit())
