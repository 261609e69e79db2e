const SPINS: i32 = 20000

/** Waits until all `threads` have called it. `p` points at two i32: arrivals and generation. */
export function barrier(p: usize, threads: i32): void {
  if (threads == 1) return
  const generation = atomic.load<i32>(p, 4)
  if (atomic.add<i32>(p, 1) == threads - 1) {
    atomic.store<i32>(p, 0)
    atomic.add<i32>(p, 1, 4)
    atomic.notify(p + 4, threads)
    return
  }
  for (let i = 0; i < SPINS; i++) {
    if (atomic.load<i32>(p, 4) != generation) return
  }
  while (atomic.load<i32>(p, 4) == generation) atomic.wait<i32>(p + 4, generation, -1)
}
