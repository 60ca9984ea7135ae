-- ARGV: field, value, '' or the value that a block holds of it, the number of the next block.
-- Sets one partition back and raises the epoch.  Returns {'ok', epoch}.
local refusal = other_schema() or bad_number()
if refusal then return refusal end
local stored = redis.call('HGET', key, ARGV[1])
if not stored then
  -- What the caller read no longer holds if the partition was packed or forgotten meanwhile.
  local blocks = redis.call('HGET', key, 'blocks') or '0'
  if ARGV[3] == '' or ARGV[4] ~= blocks then return {'changed'} end
  stored = ARGV[3]
end
local there = sort_key(stored)
if not there then return {'corrupt', ARGV[1]} end
if below(there, sort_key(ARGV[2])) then return {'ahead'} end
redis.call('HSET', key, ARGV[1], ARGV[2])
redis.call('HINCRBY', key, 'revision', 1)
local _, epoch = newest_epoch()
local raised = string.format('%.0f', epoch + 1)
write_epoch(raised)
return {'ok', raised}
