/**
 * @file Tables of the ledger, and the migrations that make them.
 *
 * Text that comes from outside (harness, model, error messages) is always inside a JSON column: the driver
 * cuts a bound string at its first NUL and cannot hold a lone surrogate, and JSON escapes both.
 */
import type { CompiledQuery, Generated, Kysely, SchemaModule } from 'kysely'

export interface LedgerTables {
  meta: { key: string; value: string }
  groups: {
    ordinal: Generated<number>
    group_id: string
    query_id: string
    task_name: string
    dispatch_version: number
    burst: number
    state: string
    consumed_step: number | null
  }
  executions: {
    ordinal: Generated<number>
    execution_id: string
    group_id: string
    member: number
    attempt: number
    state: string
    outcome: string | null
    reward: number | null
    /** JSON object of numbers. */
    parts: string
    error_code: string | null
    /** JSON string. */
    error_message: string | null
    started_at_ms: number | null
    ended_at_ms: number | null
  }
  calls: {
    call_id: string
    execution_id: string
    sequence: number
    dialect: string
    /** JSON string. */
    thread: string
    role: string
    request_hash: string
    /** JSON of Usage. */
    usage: string
    started_at_ms: number
    ended_at_ms: number
    moves: number
  }
  nodes: {
    execution_id: string
    node_id: number
    parent: number
    call_id: string
    provenance: string
    /** JSON: the items of a harness node, the turn of a policy node. */
    content: string
    token_ids: Uint8Array
    /** The rest is null in a harness node. */
    behavior_logprobs: Uint8Array | null
    policy_versions: Uint8Array | null
    finish_reason: string | null
    status: string | null
  }
  leaves: {
    execution_id: string
    leaf: number
    role: string
    fate: string
    policy_tokens: number
    trained_tokens: number
  }
  steps: {
    step: number
    burst: number
    /** JSON array of group ids. */
    groups: string
    /** JSON object of numbers. */
    metrics: string
  }
  checkpoints: { step: number; policy_version: number; burst: number; folder: string }
}

type Compiled = Pick<CompiledQuery, 'sql'>

/** Statement lists, oldest first. An entry is never edited once released; version = number of entries applied. */
export const MIGRATIONS: readonly ((db: Kysely<LedgerTables>) => readonly Compiled[])[] = [firstLedger]

/** Marks the file as ours (PRAGMA application_id): the bytes of "gyre". */
export const APPLICATION_ID = 0x67797265

function firstLedger({ schema }: Kysely<LedgerTables>): readonly Compiled[] {
  return [...executionTables(schema), ...callTables(schema), ...trainingTables(schema)].map((table) => table.compile())
}

type Tables = readonly { compile(): Compiled }[]

function executionTables(s: SchemaModule): Tables {
  return [
    s
      .createTable('meta')
      .addColumn('key', 'text', (c) => c.primaryKey().notNull())
      .addColumn('value', 'text', (c) => c.notNull()),
    s
      .createTable('groups')
      .addColumn('ordinal', 'integer', (c) => c.primaryKey())
      .addColumn('group_id', 'text', (c) => c.notNull().unique())
      .addColumn('query_id', 'text', (c) => c.notNull())
      .addColumn('task_name', 'text', (c) => c.notNull())
      .addColumn('dispatch_version', 'integer', (c) => c.notNull())
      .addColumn('burst', 'integer', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('consumed_step', 'integer'),
    s
      .createTable('executions')
      .addColumn('ordinal', 'integer', (c) => c.primaryKey())
      .addColumn('execution_id', 'text', (c) => c.notNull().unique())
      .addColumn('group_id', 'text', (c) => c.notNull().references('groups.group_id'))
      .addColumn('member', 'integer', (c) => c.notNull())
      .addColumn('attempt', 'integer', (c) => c.notNull())
      .addColumn('state', 'text', (c) => c.notNull())
      .addColumn('outcome', 'text')
      .addColumn('reward', 'real')
      .addColumn('parts', 'text', (c) => c.notNull())
      .addColumn('error_code', 'text')
      .addColumn('error_message', 'text')
      .addColumn('started_at_ms', 'real')
      .addColumn('ended_at_ms', 'real')
      .addUniqueConstraint('one_row_per_attempt', ['group_id', 'member', 'attempt']),
  ]
}

function callTables(s: SchemaModule): Tables {
  return [
    s
      .createTable('calls')
      .addColumn('call_id', 'text', (c) => c.primaryKey().notNull())
      .addColumn('execution_id', 'text', (c) => c.notNull())
      .addColumn('sequence', 'integer', (c) => c.notNull())
      .addColumn('dialect', 'text', (c) => c.notNull())
      .addColumn('thread', 'text', (c) => c.notNull())
      .addColumn('role', 'text', (c) => c.notNull())
      .addColumn('request_hash', 'text', (c) => c.notNull())
      .addColumn('usage', 'text', (c) => c.notNull())
      .addColumn('started_at_ms', 'real', (c) => c.notNull())
      .addColumn('ended_at_ms', 'real', (c) => c.notNull())
      .addColumn('moves', 'integer', (c) => c.notNull())
      .addUniqueConstraint('one_call_per_sequence', ['execution_id', 'sequence']),
    s
      .createTable('nodes')
      .addColumn('execution_id', 'text', (c) => c.notNull())
      .addColumn('node_id', 'integer', (c) => c.notNull())
      .addColumn('parent', 'integer', (c) => c.notNull())
      .addColumn('call_id', 'text', (c) => c.notNull())
      .addColumn('provenance', 'text', (c) => c.notNull())
      .addColumn('content', 'text', (c) => c.notNull())
      .addColumn('token_ids', 'blob', (c) => c.notNull())
      .addColumn('behavior_logprobs', 'blob')
      .addColumn('policy_versions', 'blob')
      .addColumn('finish_reason', 'text')
      .addColumn('status', 'text')
      .addUniqueConstraint('one_row_per_node', ['execution_id', 'node_id']),
  ]
}

function trainingTables(s: SchemaModule): Tables {
  return [
    s
      .createTable('leaves')
      .addColumn('execution_id', 'text', (c) => c.notNull())
      .addColumn('leaf', 'integer', (c) => c.notNull())
      .addColumn('role', 'text', (c) => c.notNull())
      .addColumn('fate', 'text', (c) => c.notNull())
      .addColumn('policy_tokens', 'integer', (c) => c.notNull())
      .addColumn('trained_tokens', 'integer', (c) => c.notNull())
      .addPrimaryKeyConstraint('one_row_per_leaf', ['execution_id', 'leaf']),
    s
      .createTable('steps')
      .addColumn('step', 'integer', (c) => c.primaryKey())
      .addColumn('burst', 'integer', (c) => c.notNull())
      .addColumn('groups', 'text', (c) => c.notNull())
      .addColumn('metrics', 'text', (c) => c.notNull()),
    s
      .createTable('checkpoints')
      .addColumn('step', 'integer', (c) => c.primaryKey())
      .addColumn('policy_version', 'integer', (c) => c.notNull())
      .addColumn('burst', 'integer', (c) => c.notNull())
      .addColumn('folder', 'text', (c) => c.notNull()),
  ]
}
