// Everything a job needs: #include <ropewalk/ropewalk.h>.
#pragma once

#include "dag/dataset.h"
#include "dag/map_reduce.h"
#include "dag/run_gang.h"
#include "dag/session.h"
#include "dag/text.h"
#include "job/init.h"
