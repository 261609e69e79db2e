/**
 * @file Gradients of the engine against central differences of a float64 forward pass written here from the
 * formulas alone: it shares no code with the kernels but the order of the parameters.
 */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { seededRng } from '../../../core/rng.ts'
import { type ModelShape, parameterLayout } from '../../../kernels/shape.ts'
import type { MicroBatch, Objective } from '../../../training/batch.ts'
import { gradientOf } from '../../../training/gradient-sums.ts'
import { createEmbeddedEngine, type EmbeddedEngine } from './embedded-engine.ts'

const SHAPE: ModelShape = {
  vocabSize: 29,
  hiddenSize: 16,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
  ffSize: 24,
  ropeTheta: 10_000,
  normEpsilon: 1e-5,
}
const layout = parameterLayout(SHAPE)
const PPO: Objective = {
  kind: 'policy-gradient',
  clipLow: 0.2,
  clipHigh: 0.28,
  ratioBound: 4,
  entropyWeight: 0.05,
}

let engine: EmbeddedEngine
beforeAll(async () => {
  engine = await createEmbeddedEngine({ model: SHAPE, slots: 1, maxContext: 128, maxTrainTokens: 256, seed: 5 })
})
afterAll(() => engine.close())

type Vector = Float64Array
const at = (v: ArrayLike<number>, i: number): number => v[i] ?? NaN

/** y = W x for W [n, x.length] at `offset`. */
function multiply(w: Vector, offset: number, n: number, x: Vector): Vector {
  const y = new Float64Array(n)
  for (let r = 0, p = offset; r < n; r++) {
    let sum = 0
    for (let c = 0; c < x.length; c++) sum += (w[p++] as number) * (x[c] as number)
    y[r] = sum
  }
  return y
}
function normalize(w: Vector, gain: number, x: Vector): Vector {
  const rms = Math.sqrt(x.reduce((s, v) => s + v * v, 0) / x.length + SHAPE.normEpsilon)
  return x.map((v, i) => (v / rms) * at(w, gain + i))
}
const HALF = SHAPE.headDim / 2
const ANGLES = Array.from({ length: 64 }, (_, position) =>
  Array.from({ length: HALF }, (__, c) => position * SHAPE.ropeTheta ** (-c / HALF)).map((a) => [
    Math.cos(a),
    Math.sin(a),
  ]),
)
function rotate(x: Vector, position: number): Vector {
  return x.map((v, i) => {
    const c = i % SHAPE.headDim
    const [cosine = NaN, sine = NaN] = ANGLES[position]?.[c % HALF] ?? []
    return v * cosine + (c < HALF ? -at(x, i + HALF) : at(x, i - HALF)) * sine
  })
}

/** Hidden state of every row after the final norm. */
function referenceRows(w: Vector, b: MicroBatch): Vector[] {
  const d = SHAPE.hiddenSize
  const hd = SHAPE.headDim
  const visible = [...b.tokenIds.keys()].map((i) => [...Array(i + 1).keys()].filter((j) => i < at(b.subtreeEnd, j)))
  let stream = [...b.tokenIds].map((id) => w.slice(layout.embedding + id * d, layout.embedding + (id + 1) * d))
  for (const l of layout.layers) {
    const width = SHAPE.heads * hd
    const side = SHAPE.kvHeads * hd
    const normed = stream.map((x) => normalize(w, l.norm1, x))
    const q = normed.map((x, i) => rotate(multiply(w, l.qkv, width, x), at(b.positions, i)))
    const k = normed.map((x, i) => rotate(multiply(w, l.qkv + width * d, side, x), at(b.positions, i)))
    const v = normed.map((x) => multiply(w, l.qkv + (width + side) * d, side, x))
    const middle = stream.map((x, i) => {
      const out = new Float64Array(width)
      for (let h = 0; h < SHAPE.heads; h++) {
        const g = Math.floor(h / (SHAPE.heads / SHAPE.kvHeads)) * hd
        const keys = visible[i] ?? []
        const scores = keys.map((j) => {
          let s = 0
          for (let c = 0; c < hd; c++) s += at(q[i] ?? [], h * hd + c) * at(k[j] ?? [], g + c)
          return Math.exp(s / Math.sqrt(hd))
        })
        const total = scores.reduce((a, s) => a + s, 0)
        keys.forEach((j, n) => {
          for (let c = 0; c < hd; c++)
            out[h * hd + c] = at(out, h * hd + c) + (at(scores, n) / total) * at(v[j] ?? [], g + c)
        })
      }
      const o = multiply(w, l.o, d, out)
      return x.map((value, c) => value + at(o, c))
    })
    stream = middle.map((x) => {
      const h = normalize(w, l.norm2, x)
      const gate = multiply(w, l.gu, SHAPE.ffSize, h)
      const up = multiply(w, l.gu + SHAPE.ffSize * d, SHAPE.ffSize, h)
      const y = multiply(
        w,
        l.down,
        d,
        gate.map((g, c) => (g / (1 + Math.exp(-g))) * at(up, c)),
      )
      return x.map((value, c) => value + at(y, c))
    })
  }
  return stream.map((x) => normalize(w, layout.finalNorm, x))
}

interface ReferenceResult {
  readonly objective: number
  readonly loss: number
  readonly entropy: number
  readonly logprobs: readonly number[]
  readonly clipped: number
  readonly masked: number
}

function reference(w: Vector, b: MicroBatch, o: Objective): ReferenceResult {
  const rows = referenceRows(w, b)
  const result = { objective: 0, loss: 0, entropy: 0, logprobs: [] as number[], clipped: 0, masked: 0 }
  b.targetRows.forEach((row, i) => {
    const logits = multiply(w, layout.embedding, SHAPE.vocabSize, rows[row] ?? new Float64Array())
    const lse = Math.log(logits.reduce((s, z) => s + Math.exp(z), 0))
    const logp = at(logits, at(b.targetIds, i)) - lse
    const entropy = -logits.reduce((s, z) => s + Math.exp(z - lse) * (z - lse), 0)
    const weight = at(b.targetWeights, i)
    result.logprobs.push(logp)
    result.entropy += weight * entropy
    if (o.kind === 'cross-entropy') {
      result.loss -= weight * logp
      result.objective -= weight * logp
      return
    }
    const ratio = Math.exp(logp - at(b.targetBehaviorLogprobs, i))
    if (!(ratio >= 1 / o.ratioBound && ratio <= o.ratioBound)) {
      result.masked++
      return
    }
    const advantage = at(b.targetAdvantages, i)
    const clipped = Math.min(1 + o.clipHigh, Math.max(1 - o.clipLow, ratio)) * advantage
    if (clipped < ratio * advantage) result.clipped++
    const loss = -Math.min(ratio * advantage, clipped)
    result.loss += weight * loss
    result.objective += weight * (loss - o.entropyWeight * entropy)
  })
  return result
}

/**
 * Two trees packed together; the first has a trunk of 20, a branch that forks again, and a second branch. Some rows
 * predict several targets: the first token of every branch.
 */
function nestedTrees(): MicroBatch {
  const rng = seededRng(11)
  const parents: number[] = []
  const chain = (parent: number, n: number): number => {
    for (let i = 0; i < n; i++) parents.push(i === 0 ? parent : parents.length - 1)
    return parents.length - 1
  }
  const trunk = chain(-1, 20)
  const branch = chain(trunk, 9)
  chain(branch, 7)
  chain(branch, 5)
  chain(trunk, 11)
  chain(-1, 13)
  const t = parents.length
  const positions = new Int32Array(t)
  const subtreeEnd = new Int32Array(t)
  parents.forEach((p, i) => (positions[i] = p < 0 ? 0 : at(positions, p) + 1))
  for (let i = t - 1; i >= 0; i--) {
    subtreeEnd[i] = Math.max(at(subtreeEnd, i), i + 1)
    const p = at(parents, i)
    if (p >= 0) subtreeEnd[p] = Math.max(at(subtreeEnd, p), at(subtreeEnd, i))
  }
  const tokenIds = Int32Array.from({ length: t }, () => rng.below(SHAPE.vocabSize))
  const targets = parents
    .map((_, i) => i)
    .filter((i) => at(parents, i) >= 0 && at(positions, i) > 4 && rng.next() < 0.8)
  return {
    tokenIds,
    positions,
    subtreeEnd,
    targetRows: Int32Array.from(targets, (i) => at(parents, i)),
    targetIds: Int32Array.from(targets, (i) => at(tokenIds, i)),
    targetWeights: Float32Array.from(targets, () => (0.5 + rng.next()) / targets.length),
    targetAdvantages: Float32Array.from(targets, () => rng.next() * 4 - 2),
    targetBehaviorLogprobs: Float32Array.from(targets, () => NaN),
  }
}

/** Behavior log-probs so that ratios lie inside, beyond the clip on both sides, and beyond the bound. */
function offPolicy(b: MicroBatch, logprobs: ArrayLike<number>): MicroBatch {
  const shifts = [0, 0.1, -0.15, 0.6, -0.6, 2]
  return {
    ...b,
    targetBehaviorLogprobs: Float32Array.from(b.targetRows, (_, i) => at(logprobs, i) - at(shifts, i % 6)),
  }
}

async function trainOn(b: MicroBatch, o: Objective) {
  await engine.zeroGradients()
  const result = await engine.forwardBackward(b, o)
  return { result, gradient: gradientOf(await engine.exportGradients()) }
}

/** Largest error over entries of every tensor, relative to the entry or to a hundredth of its tensor's largest. */
async function worstError(b: MicroBatch, o: Objective, perTensor: number): Promise<number> {
  const { gradient } = await trainOn(b, o)
  const w = Float64Array.from(await engine.exportWeights())
  const rng = seededRng(3)
  const epsilon = 1e-5
  let worst = 0
  for (const t of layout.tensors) {
    const scale = gradient.subarray(t.offset, t.offset + t.size).reduce((a, g) => Math.max(a, Math.abs(g)), 0)
    for (let n = 0; n < perTensor; n++) {
      const i = t.offset + rng.below(t.size)
      const held = at(w, i)
      w[i] = held + epsilon
      const up = reference(w, b, o).objective
      w[i] = held - epsilon
      const down = reference(w, b, o).objective
      w[i] = held
      const expected = (up - down) / (2 * epsilon)
      worst = Math.max(worst, Math.abs(at(gradient, i) - expected) / Math.max(Math.abs(expected), scale / 100))
    }
  }
  return worst
}

test('log-probs, loss, entropy and counts of a nested tree agree with the reference', async () => {
  const w = Float64Array.from(await engine.exportWeights())
  const tree = nestedTrees()
  const plain = reference(w, tree, { kind: 'cross-entropy' })
  const batch = offPolicy(tree, plain.logprobs)
  const expected = reference(w, batch, PPO)
  const { result } = await trainOn(batch, PPO)
  expect(expected.clipped).toBeGreaterThan(3)
  expect(expected.masked).toBeGreaterThan(3)
  expect(result.clippedTokens).toBe(expected.clipped)
  expect(result.maskedTokens).toBe(expected.masked)
  expect(result.loss).toBeCloseTo(expected.loss, 5)
  expect(result.entropy).toBeCloseTo(expected.entropy, 5)
  const worst = Math.max(...expected.logprobs.map((x, i) => Math.abs(x - at(result.logprobs, i))))
  expect(worst).toBeLessThan(5e-6)
})

test('gradients of the clipped objective with entropy agree with central differences to 1e-4', async () => {
  const tree = nestedTrees()
  const plain = reference(Float64Array.from(await engine.exportWeights()), tree, { kind: 'cross-entropy' })
  expect(await worstError(offPolicy(tree, plain.logprobs), PPO, 3)).toBeLessThan(1e-4)
})

test('gradients of cross-entropy agree with central differences to 1e-4', async () => {
  expect(await worstError(nestedTrees(), { kind: 'cross-entropy' }, 2)).toBeLessThan(1e-4)
})

/** Every path of the tree as a row of its own; a target goes with the first path through it. */
function flatten(b: MicroBatch): MicroBatch {
  const t = b.tokenIds.length
  const ancestors = (i: number): number[] => [...b.tokenIds.keys()].filter((j) => j <= i && i < at(b.subtreeEnd, j))
  const leaves = [...b.tokenIds.keys()].filter((i) => at(b.subtreeEnd, i) === i + 1)
  const out = {
    ids: [] as number[],
    positions: [] as number[],
    ends: [] as number[],
    rows: [] as number[],
    order: [] as number[],
  }
  const used = new Set<number>()
  for (const leaf of leaves) {
    const path = ancestors(leaf)
    const base = out.ids.length
    path.forEach((row, n) => {
      out.ids.push(at(b.tokenIds, row))
      out.positions.push(n)
      out.ends.push(base + path.length)
      b.targetRows.forEach((targetRow, i) => {
        if (used.has(i) || targetRow !== row) return
        if (n + 1 < path.length && at(b.tokenIds, at(path, n + 1)) !== at(b.targetIds, i)) return
        used.add(i)
        out.rows.push(base + n)
        out.order.push(i)
      })
    })
  }
  expect(used.size).toBe(b.targetRows.length)
  expect(out.ids.length).toBeGreaterThan(t)
  const pick = (values: Float32Array): Float32Array => Float32Array.from(out.order, (i) => at(values, i))
  return {
    tokenIds: Int32Array.from(out.ids),
    positions: Int32Array.from(out.positions),
    subtreeEnd: Int32Array.from(out.ends),
    targetRows: Int32Array.from(out.rows),
    targetIds: Int32Array.from(out.order, (i) => at(b.targetIds, i)),
    targetWeights: pick(b.targetWeights),
    targetAdvantages: pick(b.targetAdvantages),
    targetBehaviorLogprobs: pick(b.targetBehaviorLogprobs),
  }
}

test('a tree gives the gradient of its paths trained as flat rows, to 1e-5, and the same log-prob bits', async () => {
  const tree = nestedTrees()
  const plain = reference(Float64Array.from(await engine.exportWeights()), tree, { kind: 'cross-entropy' })
  const batch = offPolicy(tree, plain.logprobs)
  const flat = flatten(batch)
  const a = await trainOn(batch, PPO)
  const b = await trainOn(flat, PPO)
  const scale = a.gradient.reduce((m, g) => Math.max(m, Math.abs(g)), 0)
  const worst = a.gradient.reduce((m, g, i) => Math.max(m, Math.abs(g - at(b.gradient, i))), 0)
  expect(worst / scale).toBeLessThan(1e-5)
  expect(Math.abs(a.result.loss - b.result.loss)).toBeLessThan(1e-6)
  expect(a.result.logprobs.toSorted()).toEqual(b.result.logprobs.toSorted())
})
