-- ARGV: who asks, for how long [ms] (0: gives it up).  Returns {'ok', the holder: '' if there is none}.
-- The server's clock alone decides when a lease ends.
local holder = redis.call('GET', key)
if holder and holder ~= ARGV[1] then return {'ok', holder} end
if ARGV[2] == '0' then
  if holder then redis.call('DEL', key) end
  return {'ok', ''}
end
redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
return {'ok', ARGV[1]}
