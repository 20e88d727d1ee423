-- Stands above every script that calls `workers_of`: counts the live consumers of a group. The
-- parking consumer is nobody, and one that was not heard of for silent_ms_max is dead.
local function pairs_of(row)
  local found = {}
  for i = 1, #row, 2 do found[row[i]] = row[i + 1] end
  return found
end
local function workers_of(stream, group, parking, silent_ms_max)
  local count = 0
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local one = pairs_of(row)
    if one.name ~= parking and one.idle <= tonumber(silent_ms_max) then count = count + 1 end
  end
  return count
end
