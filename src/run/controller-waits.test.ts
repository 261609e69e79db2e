import { readFile } from 'node:fs/promises'
import { expect, test } from 'vitest'
import { monotonicClock, realTimers } from '../host/clock.ts'
import { Waits } from './controller-waits.ts'

const waits = (): Waits => new Waits(monotonicClock, realTimers)

test('an answer that came while this process could not listen is in time', async () => {
  const answer = readFile(import.meta.filename, 'utf8').then((text) => text.length)
  const waiting = waits().within(answer, 30, 'reading')
  const until = performance.now() + 200
  while (performance.now() < until);
  expect(await waiting).toBeGreaterThan(100)
})

test('what never comes ends with what was waited for', async () => {
  const never = new Promise<never>(() => undefined)
  await expect(waits().within(never, 20, 'the end')).rejects.toMatchObject({
    code: 'E_CELL_TIMEOUT',
    message: 'the end did not end within 20 ms',
  })
})

test('work that can be told to end is told at its deadline, and when the controller ends', async () => {
  const all = waits()
  const signals: AbortSignal[] = []
  const work = (signal: AbortSignal): Promise<never> => {
    signals.push(signal)
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('told'))))
  }
  await expect(all.stoppable(work, 10, 'work')).rejects.toMatchObject({ code: 'E_CELL_TIMEOUT' })
  const second = all.stoppable(work, 10_000, 'work')
  all.close()
  await expect(second).rejects.toThrow('told')
  expect(signals.map((signal) => signal.aborted)).toEqual([true, true])
})

test('the end of the controller ends pauses at once and drops alarms', async () => {
  const all = waits()
  let rung = 0
  all.alarm(monotonicClock.now() + 10, () => rung++)
  const pause = all.pause(60_000)
  all.close()
  await pause
  await all.pause(60_000)
  await new Promise((resolve) => {
    setTimeout(resolve, 30)
  })
  expect(rung).toBe(0)
})

test('an alarm months ahead comes when its time has come, not when a timer overflows', () => {
  let now = 0
  const pending: { at: number; action: () => void }[] = []
  const timers = {
    after: (delayMs: number, action: () => void) => {
      expect(delayMs).toBeLessThan(2 ** 31)
      pending.push({ at: now + delayMs, action })
      return () => undefined
    },
  }
  const month = 30 * 24 * 3_600_000
  let rungAt = 0
  new Waits({ now: () => now }, timers).alarm(3 * month, () => (rungAt = now))
  for (let next = pending.shift(); next !== undefined; next = pending.shift()) {
    now = next.at
    next.action()
  }
  expect(rungAt).toBe(3 * month)
})
