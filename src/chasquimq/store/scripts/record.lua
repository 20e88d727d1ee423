-- Append an entry to the history of a queue, once however often it is sent.
-- KEYS     1 history (stream)   2 marker of the run
-- ARGV     1 seq   2 len_max (0: no cap)   3 marker_ttl_s   4.. fields and values
-- RETURNS  1 written, 0 the run had written it before
-- SETTLES  a lost reply: the marker holds the last number that the run has written.
local seq = tonumber(ARGV[1])
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if last >= seq then return 0 end
needs('SET', KEYS[2], '')
if tonumber(ARGV[2]) > 0 then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 4))
else
    redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[3])
return 1
