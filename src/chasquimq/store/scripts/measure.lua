-- Measure the next entries of a stream without sending them.
-- KEYS     1 stream
-- ARGV     1 after this id   2 up to this id   3 entries_max   4 rows_max
--          5 the field with the number of rows, or '' where an entry is a row
-- RETURNS  {last id, entries, rows}, or {} where nothing is left; one is taken whatever its rows
-- SETTLES  planning beside reading: only numbers travel twice.
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local rows_max = tonumber(ARGV[4])

local function rows_of(fields)
  if ARGV[5] == '' then return 1 end
  for i = 1, #fields, 2 do
    if fields[i] == ARGV[5] then
      local digits = string.match(fields[i + 1], '^%d+$')
      if digits and #digits <= 9 then return math.max(1, tonumber(digits)) end
      return 1
    end
  end
  return 1
end

local taken, rows = 0, 0
for i = 1, #entries do
  local more = rows_of(entries[i][2])
  if taken > 0 and rows + more > rows_max then break end
  taken, rows = i, rows + more
end
if taken == 0 then return {} end
return {entries[taken][1], taken, rows}
