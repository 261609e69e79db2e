/** @file The model a run trains: its own shape from the run file, or that of a folder. */
import { copyFileSync, existsSync } from 'node:fs'
import { join } from 'node:path'
import { readModelConfig } from '../../adapters/engine/embedded/model-files.ts'
import type { RunConfig } from '../../config/resolve.ts'
import { GyreError } from '../../core/errors.ts'
import type { ModelShape } from '../../kernels/shape.ts'

/** What describes a model beside its weights. A run keeps a copy, so that it can be resumed without the folder. */
const DESCRIPTION = ['config.json', 'tokenizer.json', 'tokenizer_config.json'] as const

/**
 * With `policy.init: folder` the model of the config becomes that of the folder; else the config stays as it is.
 * @param into the run's own policy folder.
 * @throws GyreError E_CONFIG_POLICY when the folder is no model folder, E_ENGINE_MODEL when it cannot be run.
 */
export function withModelOfFolder(config: RunConfig, into: string): RunConfig {
  const { policy } = config
  if (policy.init !== 'folder') return config
  for (const name of DESCRIPTION) {
    if (!existsSync(join(into, name))) copyFrom(policy.folder ?? '', name, into)
  }
  const { shape, maxPositions } = readModelConfig(into)
  const { hiddenSize, layers, heads, kvHeads, ffSize } = shape
  return {
    ...config,
    policy: { ...policy, model: { hiddenSize, layers, heads, kvHeads, ffSize, context: maxPositions } },
  }
}

/** @param policyFolder the run's own. */
export function modelShape({ policy }: RunConfig, policyFolder: string, vocabSize: number): ModelShape {
  if (policy.init === 'folder') return readModelConfig(policyFolder).shape
  const { hiddenSize, layers, heads, kvHeads, ffSize } = policy.model
  return {
    vocabSize,
    hiddenSize,
    layers,
    heads,
    kvHeads,
    headDim: hiddenSize / heads,
    ffSize,
    // Of Llama: rotary base and norm epsilon that its own code defaults to.
    ropeTheta: 10_000,
    normEpsilon: 1e-5,
  }
}

function copyFrom(folder: string, name: string, into: string): void {
  if (!existsSync(join(folder, name))) {
    throw new GyreError(
      `policy.folder ${folder} has no ${name}: give a folder with model.safetensors, ${DESCRIPTION.join(', ')}, such as a checkpoint of a run`,
      { boundary: 'config', code: 'E_CONFIG_POLICY' },
    )
  }
  copyFileSync(join(folder, name), join(into, name))
}
