-- Forget index entries of delayed jobs that are gone: somebody moved them who does not keep dix.
-- KEYS     1 delayed (zset)   2 dix (hash: job id -> due ms)
-- ARGV     1 cursor ("0": begin)   2 page_max   3 grace_ms
-- RETURNS  {how many were forgotten, cursor of the next page ("0": this was the last)}
-- SETTLES  an add beside it: an entry is stale only when its time has passed and no member has it.
local call, try = redis.call, redis.pcall
local delayed, dix, page_max = KEYS[1], KEYS[2], tonumber(ARGV[2])
local size = call('HLEN', dix)
-- As many entries as members: each member has its own, and a long walk would find nothing.
if size == 0 or (size > page_max and size == call('ZCARD', delayed)) then return {0, '0'} end
local time = call('TIME')
local past_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - tonumber(ARGV[3])
local first = call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
local first_ms = first[2] and tonumber(first[2]) or math.huge

-- What is no time names no job.
local function is_stale(due)
  local due_ms = tonumber(due)
  if not due_ms or due_ms ~= due_ms then return true end
  if due_ms > past_ms then return false end
  return due_ms < first_ms or try('ZCOUNT', delayed, due, due) == 0
end

local page, stale = call('HSCAN', dix, ARGV[1], 'COUNT', page_max), {}
for i = 1, #page[2], 2 do
  if is_stale(page[2][i + 1]) then stale[#stale + 1] = page[2][i] end
end
-- A page may be larger than asked for, and Lua cannot name all of it at once.
for i = 1, #stale, 1000 do
  call('HDEL', dix, unpack(stale, i, math.min(i + 999, #stale)))
end
return {#stale, page[1]}
