#!/bin/sh
echo zebra >> answer.txt
echo amber >> answer.txt
