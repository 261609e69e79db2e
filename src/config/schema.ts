/**
 * @file Every knob of a run file, with its meaning, unit and default. Defaults are here and nowhere else.
 *
 * Letters of the paper: N executions per group, B groups per step, mu steps per burst, phi carried over, K cells,
 * C_e slots of one cell. A nested section has `.prefault({})`, which fills the defaults inside it.
 */
import { z } from 'zod'
import { choice, count, duration, real, size, text, toggle } from './fields.ts'

const harness = z
  .strictObject({
    name: choice(
      ['pi', 'claude-code', 'codex', 'qwen-code', 'opencode', 'gemini-cli', 'command'],
      'Which harness runs the executions: one that is installed from npm on first use, or command: any program, by argv.',
    ).default('pi'),
    profile: text(
      'Harness profile of your own: a YAML or JSON file, relative to the run file (docs/profiles.md). Default: the one we ship for the harness, else the generic one.',
    ).optional(),
    version: text('npm version of the harness. Default: the one gyre is tested with. Ignored for command.').optional(),
    args: z.array(z.string()).describe('Extra command-line arguments for the harness.').default([]),
    argv: z
      .array(z.string())
      .describe(
        'Program and arguments of harness command. {instruction}, {instruction_file}, {model} and {base_url} are replaced; OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY and GYRE_MODEL are in its environment.',
      )
      .default([]),
    env: z
      .record(z.string(), z.string())
      .describe(
        'Environment variables of the harness. A value env:NAME is read from the environment of gyre: use it for secrets.',
      )
      .default({}),
    timeout: duration('Time one execution may take. When it is over the work done so far is still scored.').default(
      '60s',
    ),
  })
  .describe('The agent program, unmodified.')
  .prefault({})

const tasks = z
  .strictObject({
    train: text('Folder of Harbor tasks to train on, relative to the run file.').optional(),
    heldOut: text('Folder of Harbor tasks to evaluate on, relative to the run file. Never trained on.').optional(),
    generate: z
      .strictObject({
        family: choice(['trail'], 'trail: follow file names from file to file and collect their codes.').default(
          'trail',
        ),
        train: count(1, 'Tasks to train on. [tasks]').default(64),
        heldOut: count(1, 'Tasks to evaluate on. [tasks]').default(24),
        minStops: count(1, 'Files on the shortest trail. [files]').default(2),
        maxStops: count(1, 'Files on the longest trail. [files]').default(4),
        fillerLines: count(0, 'Lines of unrelated text before the code of every file. [lines]').default(0),
        talks: toggle(
          'Demonstrations say a random word before every call, so that executions of one task differ early.',
        ).default(false),
      })
      .describe('Generated tasks instead of the two folders.')
      .optional(),
  })
  .describe('What is to be solved: two folders, or a generated family.')

const sandbox = z
  .strictObject({
    kind: choice(
      ['auto', 'process', 'bubblewrap'],
      'process: own folder, process group and environment. bubblewrap: also no network but the gateway, and a read-only system. auto: bubblewrap where it works, else process.',
    ).default('auto'),
    memory: size('Address space of each process.').default('0'),
    fileSize: size('Largest file a process may write.').default('256MiB'),
    processes: count(0, 'Processes and threads of one sandbox. [processes] 0 for no limit.').default(0),
    keep: choice(
      ['never', 'failed', 'always'],
      'Which workspaces are kept under executions/ in the run folder.',
    ).default('failed'),
  })
  .describe('Where an execution runs.')
  .prefault({})

const policy = z
  .strictObject({
    init: choice(
      ['random', 'folder'],
      'random: new weights by the seed. folder: a checkpoint in Hugging Face layout.',
    ).default('random'),
    folder: text('The checkpoint for init: folder, relative to the run file.').optional(),
    model: z
      .strictObject({
        hiddenSize: count(8, 'Width of the residual stream.').default(128),
        layers: count(1, 'Transformer blocks.').default(4),
        heads: count(1, 'Query heads. hiddenSize / heads is a multiple of 8.').default(4),
        kvHeads: count(1, 'Key and value heads; divides heads.').default(2),
        ffSize: count(4, 'Width of the feed-forward layer; a multiple of 4.').default(352),
        context: count(64, 'Longest path. [tokens]').default(2048),
      })
      .describe('Shape of a new model. Ignored for init: folder.')
      .prefault({}),
    tokenizer: z
      .strictObject({
        vocabSize: count(300, 'Tokens of the vocabulary, special ones included. [tokens]').default(512),
        split: choice(['words', 'lines'], 'What a learned token may not cross: a word, or a line.').default('words'),
      })
      .describe('Tokenizer trained for a new model. Ignored for init: folder.')
      .prefault({}),
  })
  .describe('The model that is trained.')
  .prefault({})

const warmstart = z
  .strictObject({
    enabled: toggle('Imitate generated demonstrations before reinforcement learning. Needs tasks.generate.').default(
      false,
    ),
    demonstrations: count(1, 'Demonstrations. [executions]').default(512),
    goOn: real(
      0,
      1,
      'Probability that a demonstration goes on at a stop that names another: below 1 they are often wrong.',
    ).default(0.5),
    excerptSteps: count(
      0,
      'Optimizer steps on single turns with only what they answer, before whole conversations. [steps]',
    ).default(180),
    steps: count(1, 'Optimizer steps on whole conversations. [steps]').default(60),
    batchTokens: count(64, 'Tokens of one step. [tokens]').default(2048),
    learningRate: real(0, 1, 'Peak step size of AdamW.').default(2e-3),
    warmupSteps: count(0, 'Steps over which the step size grows from 0. [steps]').default(10),
  })
  .describe('Cold start: how a random policy learns to call tools at all.')
  .prefault({})

const rollout = z
  .strictObject({
    groupSize: count(2, 'N: executions of one query, compared with each other. [executions]').default(8),
    temperature: real(0.01, 100, 'Of the sampling distribution.').default(1),
    topP: real(0.001, 1, 'Nucleus: the smallest set of tokens with this probability. 1 for no limit.').default(1),
    topK: count(0, 'Most likely tokens to sample from. [tokens] 0 for no limit.').default(0),
    maxTokens: count(1, 'Longest answer of one model call. [tokens]').default(256),
    maxCalls: count(0, 'Model calls of one execution. [calls] 0 for no limit.').default(32),
    overallTimeout: duration('Time from start to score, after which an execution is excluded from training.').default(
      '5m',
    ),
    evaluationRetries: count(0, 'Further tries of a scorer that failed, before the execution is excluded.').default(2),
    executionAttempts: count(1, 'Attempts of one member of a group after infrastructure failures. [attempts]').default(
      3,
    ),
    poisonLimit: count(
      0,
      'Groups of one task lost in a row before the task is parked: dealt no more in this run. [groups] 0 never parks.',
    ).default(3),
    excludedGroupsLimit: count(
      1,
      'Groups excluded in a row, none ready in between, that end the run. [groups]',
    ).default(8),
  })
  .describe('How executions are run.')
  .prefault({})

const training = z
  .strictObject({
    groupsPerStep: count(1, 'B: groups one optimizer step consumes. [groups]').default(4),
    stepsPerBurst: count(1, 'mu: optimizer steps between two publications of weights. [steps]').default(2),
    steps: count(1, 'Optimizer steps of the run. [steps]').default(40),
    advantage: choice(
      ['grpo', 'dr-grpo', 'rloo'],
      'Against the group: grpo divides by its standard deviation, dr-grpo does not, rloo compares with the mean of the others.',
    ).default('grpo'),
    learningRate: real(0, 1, 'Step size of AdamW.').default(3e-3),
    warmupSteps: count(0, 'Steps over which the step size grows from 0. [steps]').default(0),
    beta1: real(0, 0.9999, 'Decay of the first moment.').default(0.9),
    beta2: real(0, 0.99999, 'Decay of the second moment.').default(0.98),
    epsilon: real(
      1e-12,
      1,
      'Added to the root of the second moment: parameters with smaller gradients hardly move, which keeps noisy steps gentle.',
    ).default(1e-3),
    weightDecay: real(0, 1, 'Decoupled weight decay.').default(0),
    gradientClip: real(0, 1e6, 'Largest norm of the gradient. 0 for no limit.').default(1),
    clipLow: real(0, 1, 'Lower clip of the ratio: 1 - clipLow.').default(0.2),
    clipHigh: real(0, 10, 'Upper clip of the ratio: 1 + clipHigh.').default(0.28),
    ratioBound: real(1, 1e6, 'A token whose ratio is outside [1/bound, bound] is not trained.').default(8),
    entropyWeight: real(0, 1, 'Weight of the entropy bonus. 0 for none.').default(0),
    jMax: count(1, 'Trajectories one execution may give. [trajectories]').default(5),
    microStepTokens: count(64, 'Tokens a cell claims at once. [tokens]').default(2048),
  })
  .describe('How groups become weights.')
  .prefault({})

const standalone = z
  .strictObject({
    kind: choice(
      ['embedded', 'sglang', 'vllm'],
      'embedded: a process of our own that only rolls out. sglang, vllm: a server you started (docs/engines.md).',
    ),
    slots: count(1, 'Executions it serves at once. [executions]').default(8),
    threads: count(1, 'Engine threads of an embedded one. [threads]').default(1),
    url: text(
      'Base URL of a server, such as http://gpu-1:30000. It must see the run folder under the same path.',
    ).optional(),
    model: text('Which of its models a vLLM server is to serve. Default: the first.').optional(),
    apiKey: text('Key of a server; env:NAME reads it from the environment of gyre.').optional(),
    headers: z
      .record(z.string(), z.string())
      .describe('Headers of every request to a server; env:NAME reads a value from the environment of gyre.')
      .default({}),
  })
  .describe('One rollout engine.')

const elastic = z
  .strictObject({
    policy: choice(
      ['elastic', 'qwengyre', 'colocate', 'async'],
      'elastic: cells move between roles as executions end. qwengyre: the same as published, without our levers. colocate: all roll out, then all train. async: a fixed split. It also sets the defaults of the levers (docs/elastic.md).',
    ).default('elastic'),
    cells: count(1, 'K: engines, each a process of its own. Cell 0 is the core. [cells]').default(2),
    slotsPerCell: count(1, 'C_e: executions one cell serves at once. [executions]').default(40),
    threadsPerCell: count(1, 'Engine threads of one cell. [threads]').default(1),
    trainingCells: count(1, 'Cells that always train under async. [cells]').default(1),
    pinCells: toggle(
      'Each cell keeps to its own share of the processors, as a cell of devices keeps to its own. Linux, with taskset.',
    ).default(false),
    carryOver: real(
      0,
      64,
      'phi: groups allowed to stay unfinished at the end of a burst, in steps; where it starts when there is a range. Given alone it is fixed. Taken as 0 by colocate. [steps] Default: by the policy.',
    ).optional(),
    carryOverMin: real(
      0,
      64,
      'The least phi that may be chosen at a boundary. [steps] Default: carryOver, or by the policy.',
    ).optional(),
    carryOverMax: real(
      0,
      64,
      'The largest phi that may be chosen at a boundary. [steps] Default: carryOver, or by the policy.',
    ).optional(),
    maxStaleness: count(
      0,
      'Hard bound: no group is trained on more optimizer steps after its dispatch. Lowers carryOverMax where needed. [steps] Default: what carryOverMax allows.',
    ).optional(),
    stragglerQuorum: real(
      0.5,
      1,
      'Share of a group that has ended before its last executions may be cut: their work so far is scored. 1 never cuts. Default: by the policy.',
    ).optional(),
    stragglerGrace: real(
      0,
      16,
      'Time the last executions of a group get beyond its quorum, as a share of the time the quorum took. Default: by the policy.',
    ).optional(),
    overCommit: real(
      1,
      8,
      'Executions admitted per slot at most, while engines are seen idle. 1 never over-commits. Default: by the policy.',
    ).optional(),
    demandAware: toggle(
      'A satellite moves to training only when it has something to claim. Default: by the policy.',
    ).optional(),
    placement: choice(
      ['latest', 'balanced'],
      'Where a new execution goes: to the cell that leaves last, or to the one with the fewest. Default: by the policy.',
    ).optional(),
    kvHandover: toggle(
      'The engines an execution moves to fetch its key-value blocks from the leaving cell instead of computing them again. Default: by the policy.',
    ).optional(),
    earlyForward: toggle(
      'Members of a step that have nothing to do compute gradients of scored executions before their group is complete. Experimental: after a fault a step may count such a gradient wrongly (docs/elastic.md). Needs training.entropyWeight 0. Default: by the policy.',
    ).optional(),
    handoverTimeout: duration('Time of such a hand-over. What has not come by then is computed again.').default('2s'),
    heartbeat: duration('Between two questions to a cell or a standalone engine whether it is alive.').default('2s'),
    healthTimeout: duration('Time of an answer to one of them; after that it counts as failed.').default('10s'),
    cellRestarts: count(0, 'Restarts of one cell before the run fails.').default(5),
    standalone: z
      .array(standalone)
      .describe(
        'Rollout engines beside the cells. They never train, take every published policy version, and are preferred when a cell leaves.',
      )
      .default([]),
  })
  .describe('Who does what when.')
  .prefault({})

const evaluation = z
  .strictObject({
    executions: count(1, 'Executions of each held-out task. [executions]').default(1),
    temperature: real(0, 100, 'Of the sampling distribution while evaluating. 0 takes the likeliest token.').default(1),
  })
  .describe('The held-out tasks, before and after training.')
  .prefault({})

const gateway = z
  .strictObject({
    host: text('Address it listens on.').default('127.0.0.1'),
    port: count(0, 'Port it listens on; 0 takes a free one.').max(65535).default(0),
    bodyLimit: size('Largest request body.').default('256MiB'),
    keepAlive: duration(
      'Longest silence of a waiting stream before a frame keeps it open; shorter for a harness that stands less.',
    ).default('15s'),
  })
  .describe('The HTTP server the harnesses talk to.')
  .prefault({})

const paths = z
  .strictObject({
    runs: text('Folder of run folders, relative to the working directory.').default('runs'),
    cache: text('Folder of installed harnesses. ~ is the home folder.').default('~/.cache/gyre'),
  })
  .describe('Where things are kept.')
  .prefault({})

const checkpoints = z
  .strictObject({
    keep: count(1, 'Newest checkpoints that stay on disk. [checkpoints]').default(3),
    durability: choice(
      ['process', 'power'],
      'process: a killed process loses nothing. power: every record also waits for the disk, against a loss of power.',
    ).default('process'),
  })
  .describe('What a resumed run starts from.')
  .prefault({})

export const RunFileSchema = z.strictObject({
  name: z
    .string()
    .regex(/^[\w.-]+$/, 'letters, digits, dots, dashes and underscores: it names the run folder')
    .describe('Name of the run and of its folder. Default: the name of the run file.')
    .optional(),
  seed: count(0, 'Of everything random: weights, tasks, order, sampling.').default(1),
  harness,
  tasks,
  sandbox,
  policy,
  warmstart,
  rollout,
  training,
  elastic,
  evaluation,
  gateway,
  checkpoints,
  paths,
})

/** A run file with its defaults filled in; durations and sizes still text. */
export type RunFile = z.output<typeof RunFileSchema>
