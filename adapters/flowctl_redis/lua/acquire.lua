-- ARGV: schema, unix seconds.  Returns {'ok', epoch}: more than every epoch before, and at least
-- the time, so that epochs go on rising for the sinks that remember them when this server's data
-- was lost.
local refusal = other_schema(ARGV[1])
if refusal then return refusal end
local text, epoch = newest_epoch()
if not epoch then return {'corrupt', 'epoch'} end
local taken = string.format('%.0f', math.max(epoch + 1, tonumber(ARGV[2])))
redis.call('HSET', key, 'schema', ARGV[1], 'epoch', taken)
return {'ok', taken}
