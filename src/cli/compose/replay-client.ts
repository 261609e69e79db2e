/** @file Sends one recorded request to the gateway, and can hang up. */
import { request } from 'node:http'

export interface SentEnd {
  /** 0 when there was no answer. */
  readonly status: number
  readonly isComplete: boolean
  readonly text: string
}

export interface SentRequest {
  readonly ended: Promise<SentEnd>
  hangUp(): void
}

export function sendRecorded(
  url: string,
  apiKey: string,
  headers: Readonly<Record<string, string>>,
  body: unknown,
): SentRequest {
  const payload = JSON.stringify(body)
  const sent = request(url, {
    method: 'POST',
    agent: false,
    headers: {
      ...headers,
      authorization: `Bearer ${apiKey}`,
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(payload),
    },
  })
  let status = 0
  let text = ''
  const ended = new Promise<SentEnd>((resolve) => {
    const end = (isComplete: boolean): void => resolve({ status, isComplete, text })
    sent.once('error', () => end(false))
    sent.once('response', (answer) => {
      status = answer.statusCode ?? 0
      answer.setEncoding('utf8')
      answer.on('data', (chunk: string) => (text += chunk))
      answer.once('error', () => end(false))
      answer.once('close', () => end(answer.complete))
    })
  })
  sent.end(payload)
  return { ended, hangUp: () => void sent.destroy() }
}
