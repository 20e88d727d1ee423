-- Stop being the leader.
-- KEYS     1 lock
-- ARGV     1 holder   2 wake (optional, stream; no key, for who may not use it releases all the same)
-- RETURNS  1 released, 0 it was not ours
-- SETTLES  a late release: it never frees another holder's lock.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
-- Some worker that has nothing to do leads next; without one, followers try by themselves.
if ARGV[2] then
  redis.pcall('XADD', ARGV[2], 'NOMKSTREAM', 'MAXLEN', 16, '*', 'for', 'leader')
end
return 1
