/**
 * @file The profiles we ship, as observed in the traffic of unmodified harnesses.
 *
 * The texts are the shortest phrases that tell a call apart. The versions they were checked against are in
 * docs/profiles.md.
 */
import type { HarnessProfile, ProfileOverrides } from './profile.ts'

const GENERIC: HarnessProfile = {
  name: 'generic',
  threadHeaders: [],
  side: [
    { tools: 'none', systemIncludes: ['title generator'] },
    { tools: 'none', systemIncludes: ['generate', 'title'] },
  ],
  summary: [
    { tools: 'none', systemIncludes: ['summarization'] },
    { tools: 'none', systemIncludes: ['summarizes a conversation'] },
    { lastUserIncludes: ['detailed summary of the conversation'] },
  ],
  subAgent: [{ systemIncludes: ['subagent working for a parent agent'] }],
  volatileSystemLines: [],
  silenceLimitMs: 60_000,
  shellTool: { name: 'bash', argument: 'command' },
  headersToRecord: ['user-agent'],
}

const PI: HarnessProfile = {
  name: 'pi',
  threadHeaders: [],
  side: [],
  summary: [{ tools: 'none', systemIncludes: ['You are a context summarization assistant'] }],
  subAgent: [],
  volatileSystemLines: [],
  silenceLimitMs: 480_000,
  shellTool: { name: 'bash', argument: 'command' },
  headersToRecord: ['user-agent'],
}

/** Its main agent and sub-agents always carry tools; titles, quota and page digests never do. */
const CLAUDE_CODE: HarnessProfile = {
  name: 'claude-code',
  threadHeaders: ['x-claude-code-agent-id'],
  side: [
    { tools: 'none' },
    // Forks of the main conversation, with its tools, that only the last user text tells apart.
    { lastUserIncludes: ['You are now acting as the memory extraction subagent'] },
    { lastUserIncludes: ['[SUGGESTION MODE:'] },
  ],
  // Whole, up to a point, or the recent part: the three instructions begin alike.
  summary: [
    { lastUserIncludes: ['CRITICAL: Respond with TEXT ONLY.', 'Your task is to create a detailed summary of'] },
    { lastUserIncludes: ['Your task is to create a detailed summary of the conversation so far'] },
  ],
  subAgent: [{ header: 'x-claude-code-agent-id' }, { systemIncludes: ['You are an agent for Claude Code'] }],
  volatileSystemLines: ['x-anthropic-billing-header:'],
  silenceLimitMs: 298_000,
  shellTool: { name: 'Bash', argument: 'command' },
  headersToRecord: [
    'user-agent',
    'x-app',
    'x-claude-code-session-id',
    'x-claude-code-agent-id',
    'x-claude-code-parent-agent-id',
  ],
}

const CODEX: HarnessProfile = {
  name: 'codex',
  threadHeaders: ['thread-id'],
  side: [
    { header: 'x-openai-memgen-request' },
    { header: 'x-openai-subagent', headerIncludes: 'memory_consolidation' },
    { header: 'x-openai-subagent', headerIncludes: 'guardian' },
    { tools: 'none' },
  ],
  summary: [
    { header: 'x-codex-turn-metadata', headerIncludes: '"request_kind":"compaction"' },
    { tools: 'none', lastUserIncludes: ['You are performing a CONTEXT CHECKPOINT COMPACTION'] },
  ],
  subAgent: [{ header: 'x-openai-subagent' }, { header: 'x-codex-parent-thread-id' }],
  volatileSystemLines: [],
  silenceLimitMs: 300_000,
  shellTool: { name: 'exec_command', argument: 'cmd' },
  headersToRecord: [
    'user-agent',
    'session-id',
    'thread-id',
    'x-codex-window-id',
    'x-codex-parent-thread-id',
    'x-codex-turn-metadata',
    'x-openai-subagent',
    'x-openai-memgen-request',
  ],
}

const OPENCODE: HarnessProfile = {
  name: 'opencode',
  threadHeaders: ['x-session-id'],
  side: [{ tools: 'none', systemIncludes: ['You are a title generator'] }],
  summary: [{ tools: 'none', systemIncludes: ['You are a context summarization agent'] }],
  subAgent: [{ header: 'x-parent-session-id' }],
  volatileSystemLines: [],
  silenceLimitMs: 302_000,
  shellTool: { name: 'bash', argument: 'command', extra: { description: 'Runs a command' } },
  headersToRecord: ['user-agent', 'x-session-id', 'x-session-affinity', 'x-parent-session-id'],
}

const QWEN_CODE: HarnessProfile = {
  name: 'qwen-code',
  threadHeaders: [],
  side: [
    { systemIncludes: ['managed memory extraction subagent'] },
    { systemIncludes: ['You are selecting memories'] },
    { systemIncludes: ['sentence-case title'] },
    { tools: 'none' },
  ],
  summary: [
    { tools: 'none', systemIncludes: ['You are the component that summarizes a conversation'] },
    { tools: 'none', lastUserIncludes: ['produce the <state_snapshot> XML'] },
    // In the middle of a run it keeps system text and tools, and asks in a last message.
    { lastUserIncludes: ['You are the component that summarizes a conversation'] },
  ],
  subAgent: [
    { systemIncludes: ['You are a general-purpose subagent working for a parent agent'] },
    // Ends the system text of every sub-agent, also of one that the user defined.
    { systemIncludes: ['return the final result as a normal model response (not a tool call)'] },
  ],
  volatileSystemLines: [],
  silenceLimitMs: 120_000,
  shellTool: { name: 'run_shell_command', argument: 'command', extra: { is_background: false } },
  headersToRecord: ['user-agent'],
}

const GEMINI_CLI: HarnessProfile = {
  name: 'gemini-cli',
  threadHeaders: [],
  side: [{ tools: 'none' }],
  summary: [{ tools: 'none', systemIncludes: ['distilling chat history into a structured XML <state_snapshot>'] }],
  subAgent: [{ tools: 'some', systemIncludes: ['complete_task'], firstUserLacks: ['<session_context>'] }],
  volatileSystemLines: [],
  silenceLimitMs: 60_000,
  shellTool: { name: 'run_shell_command', argument: 'command' },
  headersToRecord: ['user-agent'],
}

/** Every profile we ship, the fallback first. */
export const HARNESS_PROFILES: readonly HarnessProfile[] = [
  GENERIC,
  PI,
  CLAUDE_CODE,
  CODEX,
  OPENCODE,
  QWEN_CODE,
  GEMINI_CLI,
]

export const HARNESS_PROFILE_NAMES: readonly string[] = HARNESS_PROFILES.map((profile) => profile.name)

/** The profile itself, or the one of this name, else the generic one. */
export function harnessProfile(profile: HarnessProfile | string): HarnessProfile {
  if (typeof profile !== 'string') return profile
  return HARNESS_PROFILES.find(({ name }) => name === profile) ?? GENERIC
}

/**
 * A whole profile from one that names only differences. A field that is given replaces that of the base.
 * @param harness whose profile is the base when `overrides` names none.
 */
export function extendedProfile(overrides: ProfileOverrides, harness = 'generic'): HarnessProfile {
  const { extends: base = harness, ...own } = overrides
  return { ...harnessProfile(base), ...own }
}
