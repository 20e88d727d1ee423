-- Remove jobs that wait in the stream, and leave those that a worker holds.
-- KEYS     1 stream   2 request token   then three for each entry: didx, dlid, uniq of its job
-- ARGV     1 token_ttl_s   2 parking consumer: what it holds waits for a worker   then entry ids
-- RETURNS  one mark an entry: 1 removed, 0 it was there no more, 2 a worker holds it
-- SETTLES  a worker that reads an entry meanwhile: either it has the job, or nobody ever will; a
--          resend after a lost reply: it answers what the first send did.
local known = redis.call('GET', KEYS[2])
if known then
  local marks = {}
  for i = 1, #known do marks[i] = tonumber(string.sub(known, i, i)) end
  return marks
end
local stream, parking, count = KEYS[1], ARGV[2], #ARGV - 2
if not string.match(ARGV[1], '^[1-9]%d*$') then
  return redis.error_reply('ERR token_ttl_s must be a time')
end
if count < 1 or #KEYS ~= 2 + count * 3 then
  return redis.error_reply('ERR each entry needs three keys')
end
for i = 1, count do
  if not string.match(ARGV[2 + i], '^%d+%-%d+$') then
    return redis.error_reply('ERR an entry id must be ms-seq')
  end
end

-- Groups that have handed out entries; one that holds nothing now needs no look.
local groups = {}
if redis.call('EXISTS', stream) == 1 then
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local one = {}
    for i = 1, #row, 2 do one[row[i]] = row[i + 1] end
    if one.pending > 0 then groups[#groups + 1] = one.name end
  end
end

-- Whether a worker holds the entry, and the groups that have it parked.
local function holders(id)
  local parked = {}
  for _, group in ipairs(groups) do
    local held = redis.call('XPENDING', stream, group, id, id, 1)[1]
    if held and held[2] ~= parking then return true, parked end
    if held then parked[#parked + 1] = group end
  end
  return false, parked
end

needs('XACK', stream, '', '0-0')
needs('DEL', KEYS[3])
needs('SET', KEYS[2], '')
-- Deletes nothing: after a delete a server that is out of memory lets a script write.
redis.call('XDEL', stream, '0-0')
local marks = {}
for i = 1, count do
  local id, at = ARGV[2 + i], i * 3
  local is_held, parked = holders(id)
  marks[i] = 2
  if not is_held then
    for _, group in ipairs(parked) do redis.call('XACK', stream, group, id) end
    marks[i] = redis.call('XDEL', stream, id)
    if marks[i] == 1 then redis.call('DEL', KEYS[at], KEYS[at + 1], KEYS[at + 2]) end
  end
end
redis.call('SET', KEYS[2], table.concat(marks), 'EX', ARGV[1])
return marks
