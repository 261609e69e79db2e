/** @file What to tell each harness so that it asks a gateway. */

export interface PasteFacts {
  readonly baseUrl: string
  readonly apiKey: string
  readonly model: string
  /** [tokens] */
  readonly contextWindow: number
}

/** Lines for a shell and for the files of the harnesses that read one. */
export function pasteBlock({ baseUrl, apiKey, model, contextWindow }: PasteFacts): string {
  return `# any client of OpenAI, and Qwen Code
export OPENAI_BASE_URL=${baseUrl}/v1 OPENAI_API_KEY=${apiKey} OPENAI_MODEL=${model}
qwen --auth-type openai -y -p "..."

# Claude Code
export ANTHROPIC_BASE_URL=${baseUrl} ANTHROPIC_API_KEY=${apiKey}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 CLAUDE_CODE_ATTRIBUTION_HEADER=0
claude -p "..." --model ${model}

# Gemini CLI
export GOOGLE_GEMINI_BASE_URL=${baseUrl} GEMINI_API_KEY=${apiKey}
gemini -y --skip-trust -p "..."

# Codex: GYRE_API_KEY=${apiKey} codex exec "...", and in ~/.codex/config.toml
model = "${model}"
model_provider = "gyre"
model_context_window = ${contextWindow}
[model_providers.gyre]
name = "gyre"
base_url = "${baseUrl}/v1"
wire_api = "responses"
env_key = "GYRE_API_KEY"

# pi: GYRE_API_KEY=${apiKey} pi --provider gyre --model ${model} -p "...", and in ~/.pi/agent/models.json
${JSON.stringify({
  providers: {
    gyre: {
      baseUrl: `${baseUrl}/v1`,
      api: 'openai-completions',
      apiKey: 'GYRE_API_KEY',
      models: [{ id: model, name: model, reasoning: true, input: ['text'], contextWindow }],
    },
  },
})}

# OpenCode: opencode run "...", and in ~/.config/opencode/opencode.json
${JSON.stringify({
  model: `gyre/${model}`,
  provider: {
    gyre: {
      npm: '@ai-sdk/openai-compatible',
      options: { baseURL: `${baseUrl}/v1`, apiKey },
      models: { [model]: { tool_call: true, reasoning: true } },
    },
  },
})}`
}
