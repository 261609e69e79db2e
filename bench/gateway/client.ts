/** @file The clients of the bench: one streamed call, with the times at which its pieces came. */
import { Agent, request } from 'node:http'

const agent = new Agent({ keepAlive: true, maxSockets: Infinity })

export interface Target {
  /** Without `/v1/chat/completions`. */
  readonly baseUrl: string
  readonly apiKey: string
}

export interface TimedCall {
  /** From the request to the first byte of the answer's text. [ms] */
  readonly firstMs: number
  /** Between pieces of the answer. [ms] */
  readonly gapsMs: readonly number[]
  readonly bytes: number
}

export function chatBody(messages: readonly object[]): string {
  return JSON.stringify({ model: 'policy', messages, max_tokens: 4096, stream: true })
}

/** @throws Error when the call does not end as a whole answer ends. */
export async function streamedCall({ baseUrl, apiKey }: Target, body: string): Promise<TimedCall> {
  const began = performance.now()
  const headers = {
    authorization: `Bearer ${apiKey}`,
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  }
  return new Promise((resolve, reject) => {
    const call = request(`${baseUrl}/v1/chat/completions`, { agent, method: 'POST', headers }, (answer) => {
      const times: number[] = []
      let [bytes, tail] = [0, '']
      answer.on('data', (chunk: Buffer) => {
        bytes += chunk.length
        tail = chunk.subarray(-64).toString('latin1')
        // The frame that opens an answer says nothing yet.
        if (chunk.includes('"content":"') && !chunk.includes('"content":""')) times.push(performance.now())
      })
      answer.once('error', reject)
      answer.once('end', () => {
        if (answer.statusCode !== 200 || !tail.includes('[DONE]')) return reject(new Error(`no whole answer: ${tail}`))
        const gapsMs = times.slice(1).map((time, i) => time - (times[i] ?? time))
        resolve({ firstMs: (times[0] ?? Number.NaN) - began, gapsMs, bytes })
      })
    })
    call.once('error', reject)
    call.end(body)
  })
}

/** Runs `count` calls, at most `concurrency` at once. */
export async function pooled<T>(count: number, concurrency: number, work: (i: number) => Promise<T>): Promise<T[]> {
  const results: T[] = []
  let next = 0
  const lane = async (): Promise<void> => {
    for (let i = next++; i < count; i = next++) results[i] = await work(i)
  }
  await Promise.all(Array.from({ length: concurrency }, lane))
  return results
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
}

export const median = (values: readonly number[]): number => quantile(values, 0.5)
