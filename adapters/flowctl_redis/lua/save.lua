-- ARGV: schema, epoch, the revision that the caller knows, saved_at_unix_ms, '' or the field of a
--       partition that would go back, how many fields go, those fields,
--       then field, value, field, value, … of those that are written.
-- Returns {'ok', revision}, or why nothing was written.
local refusal = other_schema() or bad_number()
if refusal then return refusal end
local text, epoch = newest_epoch()
if tonumber(ARGV[2]) < epoch then return {'fenced', text} end

-- The caller sends what is different from what it knows.  Another revision here means that it does
-- not know: a fail-over, a restart without the last second, a save whose answer was lost.
local revision = redis.call('HGET', key, 'revision') or '0'
if ARGV[3] ~= revision then return {'resend'} end
if ARGV[5] ~= '' then return {'back', ARGV[5]} end

local written = 7 + tonumber(ARGV[6])
for i = written, #ARGV, 2 do
  local is_partition = string.sub(ARGV[i], 1, 2) == 'p:'
  local stored = is_partition and redis.call('HGET', key, ARGV[i])
  if stored then
    local there = sort_key(stored)
    if not there then return {'corrupt', ARGV[i]} end
    if below(sort_key(ARGV[i + 1]), there) then return {'back', ARGV[i]} end
  end
end

-- HSET comes first: a server that is out of memory refuses it, but not once something is written.
redis.call('HSET', key, 'epoch', ARGV[2], 'epoch_copy', ARGV[2], 'saved_at_unix_ms', ARGV[4])
if ARGV[1] == '1' then
  redis.call('HSETNX', key, 'schema', '1')
else
  redis.call('HSET', key, 'schema', ARGV[1])
end
for i = written, #ARGV, 2 do
  redis.call('HSET', key, ARGV[i], ARGV[i + 1])
end
for i = 7, written - 1 do
  redis.call('HDEL', key, ARGV[i])
end
return {'ok', tostring(redis.call('HINCRBY', key, 'revision', 1))}
