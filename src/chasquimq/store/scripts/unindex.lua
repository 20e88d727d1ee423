-- Forget the index keys of jobs that were promoted, and leave those of jobs that still wait.
-- KEYS     1 delayed (zset)   then the didx of each job
-- RETURNS  how many were forgotten
-- SETTLES  a member that carried the id of another job: that one can still be cancelled.
needs('GET', KEYS[2])
local gone = 0
for i = 2, #KEYS do
  -- A key of another type is an index of nothing.
  local member = redis.pcall('GET', KEYS[i])
  local is_waiting = type(member) == 'string' and redis.call('ZSCORE', KEYS[1], member)
  if not is_waiting then gone = gone + redis.call('DEL', KEYS[i]) end
end
return gone
