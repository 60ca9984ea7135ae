-- ARGV: schema, epoch, expected revision ('' = all partitions are in here), saved_at_unix_ms,
--       then field, value, field, value, …
-- Returns {'ok', revision}, or why nothing was written.
local refusal = other_schema(ARGV[1]) or bad_number()
if refusal then return refusal end
local text, epoch = newest_epoch()
if tonumber(ARGV[2]) < epoch then return {'fenced', text} end

-- A caller that sends only what changed relies on what it sent before.  Another revision here
-- means that this is lost (a fail-over, a restart without its last second): ask for everything.
local revision = redis.call('HGET', key, 'revision') or '0'
if ARGV[3] ~= '' and ARGV[3] ~= revision then return {'resend'} end

for i = 5, #ARGV, 2 do
  local stored = redis.call('HGET', key, ARGV[i])
  if stored then
    local there = sort_key(stored)
    if not there then return {'corrupt', ARGV[i]} end
    if below(sort_key(ARGV[i + 1]), there) then return {'back', ARGV[i]} end
  end
end

redis.call('HSET', key, 'schema', ARGV[1], 'epoch', ARGV[2], 'saved_at_unix_ms', ARGV[4])
for i = 5, #ARGV, 2 do
  redis.call('HSET', key, ARGV[i], ARGV[i + 1])
end
return {'ok', tostring(redis.call('HINCRBY', key, 'revision', 1))}
