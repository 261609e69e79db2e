/** @file Loaded before a program (`node --import`): sets its wall clock forward by a day, then back by two, again and again. */
const EVERY_MS = 1500
const DAY_MS = 24 * 3_600_000
const RealDate = Date
const realNow = RealDate.now
const start = performance.now()
const offsetMs = () => [0, DAY_MS, -DAY_MS][Math.floor((performance.now() - start) / EVERY_MS) % 3]

globalThis.Date = class extends RealDate {
  constructor(...parts) {
    if (parts.length === 0) super(realNow() + offsetMs())
    else super(...parts)
  }
  static now() {
    return realNow() + offsetMs()
  }
}
