-- Acknowledge and delete finished entries where the server has no single command for it.
-- KEYS     1 stream
-- ARGV     1 group   2.. entry ids (at most 1,000)
-- RETURNS  one mark an id: 1 was pending and is gone now, -1 was not pending
-- SETTLES  who completes an entry: the first ack finds it pending, every later one does not.
needs('XDEL', KEYS[1], '0-0')
local marks, gone = {}, {}
for i = 2, #ARGV do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    marks[i - 1] = 1
    gone[#gone + 1] = ARGV[i]
  else
    marks[i - 1] = -1
  end
end
if #gone > 0 then redis.call('XDEL', KEYS[1], unpack(gone)) end
return marks
