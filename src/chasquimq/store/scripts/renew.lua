-- Renew the leases that are still ours.
-- KEYS     1 stream
-- ARGV     1 group   2 consumer   3.. entry ids in ascending order (at most 500)
-- RETURNS  the ids that are ours no more
-- SETTLES  a late renewal: it never takes an entry back from its new owner.
local range = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[#ARGV], 8000, ARGV[2])
local owned = {}
for _, held in ipairs(range) do owned[held[1]] = true end
local ours, lost = {}, {}
for i = 3, #ARGV do
  if owned[ARGV[i]] then ours[#ours + 1] = ARGV[i] else lost[#lost + 1] = ARGV[i] end
end
if #ours > 0 then
  ours[#ours + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(ours))
end
return lost
