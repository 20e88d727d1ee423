-- Stands above every script that calls `ring`: wakes the promoter, which sleeps until the first job
-- is due, where that is one of those just added. Whoever may not ring adds all the same: the bell
-- is no KEY, and nothing here can fail.
local function ring(first_ms, delayed, bell)
  local first = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  if not (first[2] and first_ms <= tonumber(first[2])) then return end
  local rings = redis.pcall('RPUSH', bell, '1')
  if rings == 1 then redis.pcall('PEXPIRE', bell, 10000) else redis.pcall('LTRIM', bell, 0, 0) end
end
