/** @file How a harness names the tool that takes a shell command. */
import type { Json } from '../core/items.ts'

export interface ShellTool {
  readonly tool: string
  /** The argument that takes the command. */
  readonly argument: string
  /** Further arguments the tool insists on. */
  readonly extra?: Readonly<Record<string, Json>>
}

const BASH: ShellTool = { tool: 'bash', argument: 'command' }

/** By the name of the harness profile. */
const SHELL_TOOLS: Readonly<Record<string, ShellTool>> = {
  pi: BASH,
  'claude-code': { tool: 'Bash', argument: 'command' },
  codex: { tool: 'exec_command', argument: 'cmd' },
  opencode: { tool: 'bash', argument: 'command', extra: { description: 'Runs a command' } },
  'qwen-code': { tool: 'run_shell_command', argument: 'command', extra: { is_background: false } },
  'gemini-cli': { tool: 'run_shell_command', argument: 'command' },
}

export function shellToolOf(profile: string): ShellTool {
  return SHELL_TOOLS[profile] ?? BASH
}
