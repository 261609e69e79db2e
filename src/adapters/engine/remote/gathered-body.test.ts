import { EventEmitter, once } from 'node:events'
import { createServer } from 'node:http'
import type { ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Pool } from 'undici'
import { expect, test } from 'vitest'
import { gatheredRequest } from './gathered-body.ts'
import type { GatheredBody } from './gathered-body.ts'
import { pacedPool } from './paced-reads.ts'

interface Served {
  readonly pool: Pool
  readonly closed: Promise<void>
  readonly [Symbol.asyncDispose]: () => Promise<void>
}

/** A server that answers with what `write` writes. */
async function serve(write: (response: ServerResponse) => Promise<void>): Promise<Served> {
  const ended = new EventEmitter()
  const closed = once(ended, 'closed').then(() => undefined)
  const server = createServer((_, response) => {
    response.once('close', () => ended.emit('closed'))
    void write(response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const pool = pacedPool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, {}, 10_000)
  return {
    pool,
    closed,
    [Symbol.asyncDispose]: async () => {
      await pool.destroy()
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function* piecesOf(body: GatheredBody): AsyncGenerator<Buffer, void, undefined> {
  try {
    for (let piece = await body.next(); piece !== undefined; piece = await body.next()) yield piece
  } finally {
    body.leave()
  }
}

const pause = async (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
const options = { method: 'GET', path: '/' } as const

async function readAll(pool: Pool): Promise<readonly string[]> {
  const { statusCode, body } = await gatheredRequest(pool, options, new AbortController().signal)
  expect(statusCode).toBe(200)
  const pieces: string[] = []
  for await (const bytes of piecesOf(body)) pieces.push(bytes.toString())
  return pieces
}

test('many small pieces come in few larger ones, all of them, in order, and fewer the more streams there are', async () => {
  const sent = Array.from({ length: 60 }, (_, i) => `piece ${i}\n`)
  await using served = await serve(async (response) => {
    for (const piece of sent) {
      response.write(piece)
      await pause(3)
    }
    response.end()
  })
  const alone = await readAll(served.pool)
  const together = await Promise.all(Array.from({ length: 30 }, async () => readAll(served.pool)))
  for (const pieces of [alone, ...together]) {
    expect(pieces.join('')).toBe(sent.join(''))
    // Nothing waits for company at the start.
    expect(pieces[0]?.length).toBeLessThan(sent.join('').length / 3)
  }
  expect(together.flat().length / together.length).toBeLessThan(alone.length / 2)
  expect(together.flat().length / together.length).toBeLessThan(sent.length / 3)
})

test('a stream that pauses is handed out at once when it goes on', async () => {
  const sentAt: number[] = []
  await using served = await serve(async (response) => {
    for (let i = 0; i < 4; i++) {
      await pause(120)
      sentAt.push(performance.now())
      response.write(`piece ${i}\n`)
    }
    response.end()
  })
  const { body } = await gatheredRequest(served.pool, options, new AbortController().signal)
  const waits: number[] = []
  for await (const bytes of piecesOf(body)) {
    expect(bytes.toString()).toBe(`piece ${waits.length}\n`)
    waits.push(performance.now() - (sentAt[waits.length] ?? 0))
  }
  expect(waits).toHaveLength(4)
  expect(Math.min(...waits)).toBeLessThan(10)
})

test('a connection is used again after an answer whose reads were spaced out', async () => {
  const ports = new Set<number | undefined>()
  await using served = await serve(async (response) => {
    ports.add(response.socket?.remotePort)
    response.write('one ')
    await pause(5)
    response.end('two')
  })
  for (let i = 0; i < 3; i++) {
    expect((await readAll(served.pool)).join('')).toBe('one two')
    await pause(5)
  }
  expect(ports.size).toBe(1)
})

test('leaving early ends the request, and so does the caller', async () => {
  for (const how of ['leaving', 'aborting']) {
    await using served = await serve(async (response) => {
      while (!response.closed) {
        response.write('more ')
        await pause(2)
      }
    })
    const caller = new AbortController()
    const { body } = await gatheredRequest(served.pool, options, caller.signal)
    const read = async (): Promise<void> => {
      for await (const bytes of piecesOf(body)) {
        expect(bytes.length).toBeGreaterThan(0)
        if (how === 'leaving') return
        caller.abort(new Error('nobody waits'))
      }
    }
    if (how === 'leaving') await read()
    else await expect(read()).rejects.toThrow('nobody waits')
    await served.closed
  }
})

test('a connection that breaks gives what came and then an error; one that never answers gives only the error', async () => {
  await using served = await serve(async (response) => {
    response.write('half')
    await pause(10)
    response.destroy()
  })
  const { body } = await gatheredRequest(served.pool, options, new AbortController().signal)
  let text = ''
  const read = async (): Promise<void> => {
    for await (const bytes of piecesOf(body)) text += bytes.toString()
  }
  await expect(read()).rejects.toThrow(/other side closed|terminated|ECONNRESET/)
  expect(text).toBe('half')
  await using silent = await serve(async (response) => {
    response.destroy()
    await Promise.resolve()
  })
  await expect(gatheredRequest(silent.pool, options, new AbortController().signal)).rejects.toThrow(
    /other side closed|ECONNRESET/,
  )
})

test('a reader that is slow makes the server wait', async () => {
  let written = 0
  const megabyte = Buffer.alloc(2 ** 20, 'x')
  await using served = await serve(async (response) => {
    for (; written < 64 && !response.closed; written++) {
      if (!response.write(megabyte)) await new Promise((resolve) => response.once('drain', resolve))
    }
    response.end()
  })
  const { body } = await gatheredRequest(served.pool, options, new AbortController().signal)
  let bytes = 0
  for await (const piece of piecesOf(body)) {
    if (bytes === 0) {
      await pause(150)
      expect(written).toBeLessThan(40)
    }
    bytes += piece.length
  }
  expect(bytes).toBe(64 * 2 ** 20)
})
