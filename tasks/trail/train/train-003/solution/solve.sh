#!/bin/sh
echo amber >> answer.txt
echo raven >> answer.txt
echo noble >> answer.txt
