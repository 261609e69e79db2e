/** @file The model's shape, and the order of its parameters in a flat vector. */

/** A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings. */
export interface ModelShape {
  readonly vocabSize: number
  readonly hiddenSize: number
  readonly layers: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly ffSize: number
  readonly ropeTheta: number
  readonly normEpsilon: number
}

export interface ParameterTensor {
  /** Hugging Face name. */
  readonly name: string
  readonly shape: readonly number[]
  /** Place in the flat vector. [elements] */
  readonly offset: number
  readonly size: number
  /** False for norm gains, which have no weight decay. */
  readonly decays: boolean
}

/** Element offsets of one layer, fused where tensors stand side by side. */
export interface LayerOffsets {
  readonly norm1: number
  /** q, k and v: [(H + 2 Hkv) hd, d]. */
  readonly qkv: number
  /** [d, H hd] */
  readonly o: number
  readonly norm2: number
  /** gate and up: [2 ff, d]. */
  readonly gu: number
  /** [d, ff] */
  readonly down: number
}

export interface ParameterLayout {
  readonly tensors: readonly ParameterTensor[]
  readonly layers: readonly LayerOffsets[]
  readonly finalNorm: number
  /** [V, d], last, so that the rows that pad V to a multiple of 8 can follow it. */
  readonly embedding: number
  /** Without padding. [elements] */
  readonly count: number
  /** V rounded up to a multiple of 8. */
  readonly paddedVocab: number
  /** With the padding of the embedding. [elements] */
  readonly paddedCount: number
}

/** What the kernels cannot compute, or undefined. */
export function unsupportedShape(s: ModelShape): string | undefined {
  for (const [name, value] of Object.entries(s)) {
    if (!(value > 0)) return `${name} is ${value}: it must be positive`
  }
  for (const name of ['hiddenSize', 'headDim', 'ffSize'] as const) {
    if (s[name] % 8 !== 0) return `${name} is ${s[name]}: it must be a multiple of 8`
  }
  if (s.heads % s.kvHeads !== 0) return `${s.heads} heads cannot share ${s.kvHeads} key heads evenly`
  return undefined
}

/**
 * Flat order: for each layer input_layernorm, q_proj, k_proj, v_proj, o_proj, post_attention_layernorm,
 * gate_proj, up_proj, down_proj; then model.norm; then model.embed_tokens. Every tensor is row-major [out, in].
 */
export function parameterLayout(s: ModelShape): ParameterLayout {
  const tensors: ParameterTensor[] = []
  let offset = 0
  const put = (name: string, ...shape: number[]): number => {
    const size = shape.reduce((a, b) => a * b, 1)
    tensors.push({ name, shape, offset, size, decays: shape.length > 1 })
    offset += size
    return offset - size
  }
  const d = s.hiddenSize
  const layers: LayerOffsets[] = []
  for (let i = 0; i < s.layers; i++) {
    const at = `model.layers.${i}.`
    const norm1 = put(`${at}input_layernorm.weight`, d)
    const qkv = put(`${at}self_attn.q_proj.weight`, s.heads * s.headDim, d)
    put(`${at}self_attn.k_proj.weight`, s.kvHeads * s.headDim, d)
    put(`${at}self_attn.v_proj.weight`, s.kvHeads * s.headDim, d)
    const o = put(`${at}self_attn.o_proj.weight`, d, s.heads * s.headDim)
    const norm2 = put(`${at}post_attention_layernorm.weight`, d)
    const gu = put(`${at}mlp.gate_proj.weight`, s.ffSize, d)
    put(`${at}mlp.up_proj.weight`, s.ffSize, d)
    const down = put(`${at}mlp.down_proj.weight`, d, s.ffSize)
    layers.push({ norm1, qkv, o, norm2, gu, down })
  }
  const finalNorm = put('model.norm.weight', d)
  const embedding = put('model.embed_tokens.weight', s.vocabSize, d)
  const paddedVocab = (s.vocabSize + 7) & ~7
  return {
    tensors,
    layers,
    finalNorm,
    embedding,
    count: offset,
    paddedVocab,
    paddedCount: offset + (paddedVocab - s.vocabSize) * d,
  }
}
