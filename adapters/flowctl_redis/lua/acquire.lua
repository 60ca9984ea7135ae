-- ARGV: the schema of a key that isn't there yet.  Returns {'ok', epoch}: more than every epoch before, and at least this server's
-- time, so that epochs go on rising for the sinks that remember them when this server's data was
-- lost.
local refusal = other_schema() or bad_number()
if refusal then return refusal end
local text, epoch = newest_epoch()
local taken = string.format('%.0f', math.max(epoch + 1, server_time_s()))
redis.call('HSETNX', key, 'schema', ARGV[1])
write_epoch(taken)
return {'ok', taken}
