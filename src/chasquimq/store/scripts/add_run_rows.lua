-- Add rows of a run, which are known by their contents: each once, and equal rows as often as
-- there are.
-- KEYS     1 stream   2 write token   3 delayed (zset)   4 dix (hash: job id -> due ms)
--          5.. buckets of the run (hashes: digest of a row -> who has asked for it)
-- ARGV     1 stream_len_max (0: no cap)   2 token_ttl_s   3 keep_ms   4 instance of the run
--          5 partition   6 attempt   7 has_waits ("0", "1", or the
--          bell to ring, a list; no key, for who may not ring it adds all the same)
--          then for each row: envelope, name, digest (16 bytes), and wait_ms where there are waits
-- RETURNS  "full" when the new rows do not fit, else one character a row: 1 added, 0 was there
-- SETTLES  an attempt that is run again or beside another: a partition owns as many of the equal
--          rows as any attempt of it asked for. A later instance finds what former ones added.
-- The id of a row is its digest in hex; of equal rows the second ends in -1, and so on.
local known = redis.call('GET', KEYS[2])
if known then return known end
local has_waits = ARGV[7] ~= '0'
local stride = has_waits and 4 or 3
local count = (#ARGV - 7) / stride
if count < 1 or count > 1000 or count ~= math.floor(count) then
  return redis.error_reply('ERR rows come in threes or fours, at most a thousand')
end
local cap, keep_ms = tonumber(ARGV[1]), tonumber(ARGV[3])
if not (keep_ms and keep_ms >= 1) then return redis.error_reply('ERR keep_ms must be a time') end
local instance, partition, attempt = ARGV[4], ARGV[5], ARGV[6]
local mine = instance .. ':' .. partition .. ':' .. attempt
local stream, bucket_count = KEYS[1], #KEYS - 4
local backlog = redis.call('XLEN', stream)
if has_waits then
  redis.call('ZCARD', KEYS[3])
  redis.call('HLEN', KEYS[4])
end

-- What is known of the rows, asked once for each bucket.
local groups, bucket_of = {}, {}
for i = 1, count do
  local digest = ARGV[7 + (i - 1) * stride + 3]
  if #digest ~= 16 then return redis.error_reply('ERR a digest has 16 bytes') end
  if not bucket_of[digest] then
    local bucket = string.byte(digest) % bucket_count + 5
    local group = groups[bucket]
    if not group then
      group = {}
      groups[bucket] = group
    end
    group[#group + 1], bucket_of[digest] = digest, bucket
  end
end
local states = {}
for bucket, group in pairs(groups) do
  local found = redis.call('HMGET', KEYS[bucket], unpack(group))
  for j = 1, #group do states[group[j]] = found[j] end
end

-- `added` equal rows are in the queue, `given` of them have an owner in this instance;
-- `owned` is by partition, `asked` by attempt.
local function read(state)
  if string.byte(state) == 123 then return cjson.decode(state) end
  local one, two, three = string.match(state, '^(.*):(.*):(.*)$')
  return { instance = one, added = 1, given = 1, owned = { [two] = 1 }, asked = { [three] = 1 } }
end

-- The place of a new row among its equals; nil: it was added before.
local function place(state)
  if state.instance ~= instance then
    state.instance, state.given, state.owned, state.asked = instance, 0, {}, {}
  end
  local asked, owned = (state.asked[attempt] or 0) + 1, state.owned[partition] or 0
  state.asked[attempt] = asked
  if asked <= owned then return nil end
  state.owned[partition], state.given = owned + 1, state.given + 1
  if state.given <= state.added then return nil end
  state.added = state.given
  return state.given - 1
end

local places, fresh = {}, 0
for i = 1, count do
  local at = 7 + (i - 1) * stride + 1
  local digest = ARGV[at + 2]
  local state = states[digest]
  if not state then
    states[digest], places[i] = mine, 0
  else
    if type(state) == 'string' then state = read(state) end
    places[i] = place(state)
    states[digest] = state
  end
  -- What waits for its time is no part of the backlog.
  local is_ready = not has_waits or tonumber(ARGV[at + 3]) == 0
  if places[i] and is_ready then fresh = fresh + 1 end
end
if cap > 0 and fresh > 0 and backlog + fresh > cap then return 'full' end

-- The envelope begins with an array of few, then the id: 32 characters behind two bytes.
local function renumbered(envelope, number)
  local id = string.sub(envelope, 4, 35) .. '-' .. number
  return string.sub(envelope, 1, 1) .. string.char(217, #id) .. id .. string.sub(envelope, 36), id
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
needs('SET', KEYS[2], '')
needs('PEXPIRE', KEYS[5], ARGV[3])
needs('HSET', KEYS[5], '', '')
if has_waits then
  needs('ZADD', KEYS[3], 0, '')
  needs('HSET', KEYS[4], '', '')
end

local function add(envelope, name)
  if name == '' then return redis.pcall('XADD', stream, '*', 'd', envelope) end
  return redis.pcall('XADD', stream, '*', 'd', envelope, 'n', name)
end

-- Ready rows come first, because the stream may refuse them; then what waits, and last who asked
-- for the rows: one that is known and was never added would be missing for ever.
local marks, added, waiting = {}, {}, {}
for i = 1, count do
  local at = 7 + (i - 1) * stride + 1
  local envelope, number = ARGV[at], places[i]
  marks[i] = number and '1' or '0'
  if number then
    local id
    if number > 0 then envelope, id = renumbered(envelope, number) end
    local wait_ms = has_waits and tonumber(ARGV[at + 3]) or 0
    if wait_ms > 0 then
      waiting[#waiting + 1] = { wait_ms, ARGV[at + 1], envelope, id or string.sub(envelope, 4, 35) }
    else
      local entry = add(envelope, ARGV[at + 1])
      if entry.err then
        if #added > 0 then redis.pcall('XDEL', stream, unpack(added)) end
        return entry
      end
      added[#added + 1] = entry
    end
  end
end
local first_ms = math.huge
for _, row in ipairs(waiting) do
  local wait_ms, name, envelope, id = unpack(row)
  local due = string.format('%.0f', now_ms + wait_ms)
  first_ms = math.min(first_ms, now_ms + wait_ms)
  redis.call('ZADD', KEYS[3], due, struct.pack('<I4', #name) .. name .. envelope)
  redis.call('HSET', KEYS[4], id, due)
end
for bucket, group in pairs(groups) do
  local fields = {}
  for j = 1, #group do
    local state = states[group[j]]
    fields[j * 2 - 1] = group[j]
    fields[j * 2] = type(state) == 'string' and state or cjson.encode(state)
  end
  redis.call('HSET', KEYS[bucket], unpack(fields))
  redis.call('PEXPIRE', KEYS[bucket], ARGV[3])
end
local answer = table.concat(marks)
redis.call('SET', KEYS[2], answer, 'EX', ARGV[2])

if ARGV[7] ~= '1' and first_ms < math.huge then ring(first_ms, KEYS[3], ARGV[7]) end
return answer
