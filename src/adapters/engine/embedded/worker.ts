/**
 * @file A thread of the embedded engine. Thread 0 leads: it takes messages, runs commands in the order they come,
 * and between messages advances every generation by one step. The others follow its jobs and see no messages.
 */
import { parentPort, workerData } from 'node:worker_threads'
import { errorText, GyreError, invariant } from '../../../core/errors.ts'
import { followJobs, runJob } from '../../../kernels/job.ts'
import { createMachine, type Machine } from '../../../kernels/machine.ts'
import { planMemory } from '../../../kernels/plan.ts'
import { instantiateKernels } from '../../../kernels/wasm.ts'
import { Batcher } from './batcher.ts'
import { HeldGradientStore } from './held-gradients.ts'
import type { Command, CommandResult, FromWorker, TokenChunk, ToWorker, WireError, WorkerSetup } from './messages.ts'
import { flatVector, initializeWeights, loadModel, saveModel, writeRopeTable } from './parameters.ts'
import { addGradients, forwardBackward, optimizerStep, trainerError } from './trainer.ts'

/** Tokens wait at most this long for company in one message. */
const FLUSH_MS = 2

class Leader {
  readonly #m: Machine
  readonly #batcher: Batcher
  readonly #held: HeldGradientStore
  readonly #post: (message: FromWorker, transfer?: ArrayBuffer[]) => void
  #steps = 0
  #isLooping = false
  #weightsChanged = true
  /** False between a change of weights and the version it gets: caches of those weights cannot be told apart. */
  #isStamped = true
  #chunks = new Map<number, TokenChunk>()
  #lastFlush = 0
  #mustFlush = false

  constructor(m: Machine, setup: WorkerSetup, post: (message: FromWorker, transfer?: ArrayBuffer[]) => void) {
    this.#m = m
    this.#post = post
    this.#batcher = new Batcher(m, setup.policyVersion, (chunk) => this.#collect(chunk))
    this.#held = new HeldGradientStore(m)
    writeRopeTable(m)
    if ('folder' in setup.start) this.#steps = loadModel(m, setup.start.folder)
    else initializeWeights(m, setup.start.seed)
    post({ kind: 'ready' })
  }

  receive(message: ToWorker): void {
    switch (message.kind) {
      case 'generate':
        this.#batcher.add(message)
        this.#loop()
        return
      case 'cancel':
        this.#batcher.cancel(message.id)
        return
      case 'command':
        this.#answer(message.id, message.command)
        return
      default:
        message satisfies never
    }
  }

  #answer(id: number, command: Command): void {
    try {
      const result = this.#run(command)
      const buffers = [result instanceof Float32Array ? result.buffer : undefined]
      this.#post(
        { kind: 'done', id, result },
        buffers.filter((b) => b instanceof ArrayBuffer),
      )
    } catch (error) {
      this.#post({ kind: 'failed', id, error: wireError(error) })
    }
  }

  #run(command: Command): CommandResult {
    const m = this.#m
    switch (command.kind) {
      case 'forward-backward':
        this.#packIfChanged()
        return forwardBackward(m, command.batch, command.objective)
      case 'hold-gradient':
        this.#packIfChanged()
        return this.#held.hold(command.key, command.batch, command.objective)
      case 'apply-held':
        this.#held.apply(command.key, command.scale)
        return undefined
      case 'drop-held':
        this.#held.drop(command.keys)
        return undefined
      case 'zero-gradients':
        runJob(m, { kind: 'zero-gradients' })
        this.#held.drop()
        return undefined
      case 'add-gradients':
        addGradients(m, command.gradients)
        return undefined
      case 'optimizer-step': {
        const gradientNorm = optimizerStep(m, command.params, this.#steps)
        this.#steps += 1
        this.#changeWeights()
        this.#isStamped = false
        return { gradientNorm }
      }
      case 'import-weights':
        this.#checkLength(command.weights)
        flatVector(m, m.plan.weights).set(command.weights)
        this.#changeWeights()
        this.#stamp(command.policyVersion)
        return undefined
      case 'set-policy-version':
        this.#stamp(command.policyVersion)
        return undefined
      case 'save':
        saveModel(m, command.folder, this.#steps)
        return undefined
      case 'load':
        this.#changeWeights()
        this.#steps = loadModel(m, command.folder)
        runJob(m, { kind: 'zero-gradients' })
        this.#stamp(command.policyVersion)
        return undefined
      case 'kv':
        return this.#batcher.handover.run(command.command, this.#version)
      case 'close':
        runJob(m, { kind: 'stop' })
        return undefined
      default:
        return command satisfies never
    }
  }

  #checkLength(vector: Float32Array): void {
    const { count } = this.#m.plan.layout
    if (vector.length === count) return
    throw trainerError('E_TRAINER_BATCH', `a vector of ${vector.length} values came for ${count} parameters`)
  }

  #stamp(policyVersion: number): void {
    this.#batcher.policyVersion = policyVersion
    this.#isStamped = true
  }

  /** Of the present weights; undefined while they have none. */
  get #version(): number | undefined {
    return this.#isStamped ? this.#batcher.policyVersion : undefined
  }

  #changeWeights(): void {
    this.#weightsChanged = true
    this.#held.drop()
    this.#batcher.dropCaches()
  }

  #packIfChanged(): void {
    if (this.#weightsChanged) runJob(this.#m, { kind: 'pack' })
    this.#weightsChanged = false
  }

  /** Steps while anything generates; messages are taken between steps. */
  #loop(): void {
    if (this.#isLooping) return
    this.#isLooping = true
    const turn = (): void => {
      if (this.#batcher.isBusy) {
        this.#packIfChanged()
        this.#batcher.step()
      }
      const isIdle = !this.#batcher.isBusy
      if (isIdle || this.#mustFlush || performance.now() - this.#lastFlush >= FLUSH_MS) this.#flush()
      if (isIdle) this.#isLooping = false
      else setImmediate(turn)
    }
    setImmediate(turn)
  }

  #collect(chunk: TokenChunk): void {
    const held = this.#chunks.get(chunk.id)
    if (held === undefined) this.#chunks.set(chunk.id, chunk)
    else {
      held.tokenIds.push(...chunk.tokenIds)
      held.logprobs.push(...chunk.logprobs)
      held.policyVersions.push(...chunk.policyVersions)
      if (chunk.end !== undefined) held.end = chunk.end
      if (chunk.error !== undefined) held.error = chunk.error
    }
    if (chunk.end !== undefined || chunk.error !== undefined) this.#mustFlush = true
  }

  #flush(): void {
    this.#lastFlush = performance.now()
    this.#mustFlush = false
    if (this.#chunks.size === 0) return
    this.#post({ kind: 'tokens', chunks: [...this.#chunks.values()] })
    this.#chunks = new Map()
  }
}

function wireError(error: unknown): WireError {
  if (error instanceof GyreError && (error.boundary === 'engine' || error.boundary === 'trainer')) {
    return { message: errorText(error), boundary: error.boundary, code: error.code as `E_${Uppercase<string>}` }
  }
  return { message: error instanceof Error ? (error.stack ?? error.message) : String(error) }
}

function main(): void {
  const setup = workerData as WorkerSetup
  const plan = planMemory(setup.shape, setup.capacity)
  const machine = createMachine(instantiateKernels(setup.module, setup.memory), plan, setup.memory, setup.thread)
  if (setup.thread > 0) {
    followJobs(machine)
    return
  }
  const port = parentPort
  invariant(port !== null, 'the engine worker has a parent')
  const post = (message: FromWorker, transfer: ArrayBuffer[] = []): void => port.postMessage(message, transfer)
  let leader: Leader | undefined
  try {
    leader = new Leader(machine, setup, post)
  } catch (error) {
    post({ kind: 'failed', id: 0, error: wireError(error) })
    return
  }
  port.on('message', (message: ToWorker) => leader.receive(message))
}

main()
